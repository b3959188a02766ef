"""Coding agents, headless and offline: each completes a session in which a tool really ran."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fixtures.clients import NODE, Service, run_client
from tests.fixtures.stack import MODEL

PROOF = "proof.txt"


def _proven(service: Service) -> bool:
    """Whether the command that the model asked for was run on this machine."""
    proof: Path = service.home / PROOF
    return proof.exists() and proof.read_text().strip() == "it ran"


async def test_claude_code(service: Service) -> None:
    call = json.dumps({"command": f"echo it ran > {PROOF}", "description": "Leave a proof"})
    told = await run_client(
        service,
        [
            NODE / "claude",
            *("-p", f"[[tool:Bash {call}]]"),
            *("--output-format", "json", "--allowedTools", "Bash", "--model", MODEL),
        ],
        env={
            "ANTHROPIC_BASE_URL": service.url,
            "ANTHROPIC_API_KEY": "any",
            "ANTHROPIC_MODEL": MODEL,
            "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
    )
    result = json.loads(told)
    assert not result["is_error"], result
    assert result["result"]
    assert _proven(service)


async def test_codex(service: Service) -> None:
    call = json.dumps({"cmd": f"echo it ran > {PROOF}"})
    settings = {
        "model": MODEL,
        "model_provider": "headrace",
        "model_providers.headrace.name": "Headrace",
        "model_providers.headrace.base_url": f"{service.url}/v1",
        "model_providers.headrace.wire_api": "responses",
        "model_providers.headrace.env_key": "HEADRACE_KEY",
    }
    options = [part for name, value in settings.items() for part in ("-c", f'{name}="{value}"')]
    told = await run_client(
        service,
        [
            *(NODE / "codex", "exec", "--skip-git-repo-check", "--json", *options),
            *("--dangerously-bypass-approvals-and-sandbox", f"[[tool:exec_command {call}]]"),
        ],
        env={"HEADRACE_KEY": "any", "CODEX_HOME": str(service.home)},
    )
    events = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    assert events[-1]["type"] == "turn.completed", events[-3:]
    assert _proven(service)


@pytest.mark.parametrize("provider", ["@ai-sdk/openai-compatible", "@ai-sdk/anthropic"])
async def test_opencode(service: Service, provider: str) -> None:
    (service.home / "opencode.json").write_text(
        json.dumps(
            {
                "autoupdate": False,
                "permission": {"bash": "allow"},
                "provider": {
                    "headrace": {
                        "npm": provider,
                        "name": "Headrace",
                        "options": {"baseURL": f"{service.url}/v1", "apiKey": "any"},
                        "models": {MODEL: {"name": "Demo", "tool_call": True}},
                    }
                },
            }
        )
    )
    call = json.dumps({"command": f"echo it ran > {PROOF}", "description": "Leave a proof"})
    await run_client(
        service,
        [NODE / "opencode", "run", "--model", f"headrace/{MODEL}", f"[[tool:bash {call}]]"],
        env={"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"},
    )
    assert _proven(service)
