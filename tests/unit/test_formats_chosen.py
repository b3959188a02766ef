"""Which formats a worker reads its model's output in, and what it refuses before it loads one."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from schemas.job import Job
from schemas.model_card import Capabilities, ModelCard
from schemas.transport.memory import MemoryTransport
from workers.__main__ import worker
from workers.compose import build_consumer
from workers.engines.scripted import CAPABILITIES, ScriptedEngine
from workers.engines.sglang_tool_parser import SglangToolFormat
from workers.metrics import WorkerMetrics
from workers.output_format import OutputFormat
from workers.parsing.tools import TOOL_FORMATS
from workers.settings import WorkerSettings


class Templated:
    """A tokenizer of which only the template matters."""

    def __init__(self, template: str) -> None:
        self.template = template

    def render_chat(self, job: Job) -> tuple[tuple[int, ...], bool]:
        raise NotImplementedError

    def decode(self, token_ids: tuple[int, ...]) -> str:
        raise NotImplementedError


class TemplatedEngine(ScriptedEngine):
    def __init__(self, template: str, capabilities: Capabilities = CAPABILITIES) -> None:
        super().__init__(capabilities=capabilities)
        self._templated = Templated(template)

    @property
    def tokenizer(self) -> Templated:  # type: ignore[override] # a chat template is all it has
        return self._templated


async def output_format(engine: ScriptedEngine, **settings: Any) -> OutputFormat:
    source = MemoryTransport().job_source(model="m", slots=1)
    consumer = build_consumer(
        WorkerSettings(model="m", served_id="m", **settings),
        engine,
        source,
        worker_id="w",
        metrics=WorkerMetrics(),
    )
    await source.close()
    return consumer._runner.output_format


async def test_the_template_says_how_calls_are_written() -> None:
    found = await output_format(TemplatedEngine("... <tool_call>\n<function=f>"))
    assert found.tools is TOOL_FORMATS["qwen3_coder"]
    assert (await output_format(TemplatedEngine("{{ messages }}"))).tools is None


async def test_the_operator_knows_better() -> None:
    engine = TemplatedEngine("<tool_call>")
    assert (await output_format(engine, tool_format="llama3")).tools is TOOL_FORMATS["llama3"]
    assert isinstance((await output_format(engine, tool_format="step3")).tools, SglangToolFormat)
    assert (await output_format(engine, reasoning_format="mistral")).reasoning == "mistral"


@pytest.mark.parametrize(
    ("template", "format"),
    [
        ("<|channel|>analysis<|message|>", "gpt-oss"),
        ("[THINK]{{ thought }}[/THINK]", "mistral"),
        ("◁think▷", "kimi"),
        ("<think>", "qwen3"),
    ],
)
async def test_the_template_says_how_reasoning_is_marked(template: str, format: str) -> None:
    assert (await output_format(TemplatedEngine(template))).reasoning == format


async def test_a_model_that_does_not_reason_has_no_reasoning() -> None:
    engine = TemplatedEngine("<think>", Capabilities())
    assert engine.card == ModelCard(
        id="scripted", context_length=1_048_576, vocab_size=65_536, capabilities=Capabilities()
    )
    assert (await output_format(engine)).reasoning is None


@pytest.mark.parametrize("option", ["--tool-call-parser", "--reasoning-parser"])
def test_an_unknown_format_is_refused_at_once(option: str) -> None:
    arguments = ["--model", "m", "--amqp-url", "amqp://localhost", option, "qwen99"]
    result = CliRunner().invoke(worker, arguments)
    assert result.exit_code == click.UsageError.exit_code
    assert "'qwen99' is not one of" in result.output
