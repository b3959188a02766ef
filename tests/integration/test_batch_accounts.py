"""Lines of batches obey the terms of the account whose batch it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ingress.accounts.administration import Administration
from ingress.accounts.terms import AccountTerms
from ingress.config import Config
from schemas.batch import Batch
from tests.fixtures.batches import (
    add_batch,
    answer_of,
    ended,
    errors,
    messages_line,
    openai_line,
    output,
    run_batcher,
    said,
)
from tests.fixtures.stack import MODEL, Stack, memory_stack, until
from workers.engines.base import EngineRequest
from workers.engines.scripted import Gate, ScriptedEngine, Step, Text

pytestmark = pytest.mark.timeout(90)

CONFIG = Config.model_validate(
    {
        "models": [{"id": MODEL}, {"id": "other-model", "context_length": 4096}],
        "accounts": [
            {"id": "mine", "models": [MODEL], "aliases": {"fast": MODEL}, "priorities": [0, 5]},
            {"id": "official", "profile": "official"},
            {"id": "off", "disabled": True},
        ],
    }
)


@asynccontextmanager
async def batch_stack(
    directory: Path, engine: ScriptedEngine | None = None
) -> AsyncIterator[Stack]:
    async with (
        memory_stack(engine, files=directory, config=CONFIG) as stack,
        run_batcher(stack.services),
    ):
        yield stack


async def add(stack: Stack, lines: Sequence[bytes], **changes: Any) -> Batch:
    services = stack.services
    assert services.store is not None
    assert services.blobs is not None
    return await add_batch(services.store, services.blobs, lines, **changes)


async def end(stack: Stack, batch: Batch) -> tuple[Batch, list[Any], list[Any]]:
    """A batch as it ended, its results, and its errors."""
    services = stack.services
    assert services.store is not None
    assert services.blobs is not None
    batch = await ended(services.store, batch)
    return batch, await output(services.blobs, batch), await errors(services.blobs, batch)


def codes(lines: Sequence[Any]) -> list[tuple[int, str]]:
    return [
        (line["response"]["status_code"], line["response"]["body"]["error"]["code"])
        for line in lines
    ]


@pytest.mark.rule("accounts.batches", "accounts.aliases")
async def test_names_of_its_own_and_models_of_others(tmp_path: Path) -> None:
    async with batch_stack(tmp_path) as stack:
        good = [openai_line("a", said("one"), model="FAST"), openai_line("b", said("two"))]
        batch, results, _ = await end(stack, await add(stack, good, account="mine"))
        assert (batch.status, batch.model) == ("completed", MODEL)
        assert [answer_of(line) for line in results] == ["one", "two"]
        assert {line["response"]["body"]["model"] for line in results} == {MODEL}
        bad = [*good, openai_line("c", "x", model="other-model"), openai_line("d", "x", model="no")]
        batch, _, _ = await end(stack, await add(stack, bad, account="mine"))
        assert batch.status == "failed"
        assert [(error.line, error.code) for error in batch.errors] == [
            (3, "model_access_denied"),
            (4, "model_not_found"),
        ]
        # Another account has no such name.
        batch, _, _ = await end(stack, await add(stack, good, account="official"))
        assert [(error.line, error.code) for error in batch.errors] == [(1, "model_not_found")]


@pytest.mark.rule("accounts.batches", "accounts.model-access")
async def test_lines_of_a_message_batch_fail_one_by_one(tmp_path: Path) -> None:
    lines = [
        messages_line("a", said("one"), model="fast"),
        messages_line("b", "x", model="gone"),
        messages_line("c", said("three")),
    ]
    async with batch_stack(tmp_path) as stack:
        _, results, _ = await end(stack, await add(stack, lines, account="mine", shape="messages"))
    kinds = [line["result"]["type"] for line in results]
    assert kinds == ["succeeded", "errored", "succeeded"]


@pytest.mark.rule("accounts.batches", "accounts.priorities", "accounts.profile")
async def test_priorities_and_profile(tmp_path: Path) -> None:
    async with batch_stack(tmp_path) as stack:
        lines = [
            openai_line("a", said("one"), "completions", priority=5),
            openai_line("b", said("two"), "completions", priority=6),
        ]
        batch, _, failed = await end(
            stack, await add(stack, lines, account="mine", dialect="completions")
        )
        assert (batch.counts.succeeded, codes(failed)) == (1, [(400, "unsupported_value")])
        minimal = [openai_line("a", said("one"), reasoning_effort="minimal")]
        for account, succeeded in (("mine", 0), ("official", 1)):
            batch, _, _ = await end(stack, await add(stack, minimal, account=account))
            assert batch.counts.succeeded == succeeded


@pytest.mark.rule("accounts.batches", "accounts.disabled")
@pytest.mark.parametrize("account", ["off", "never-was"])
async def test_a_disabled_account_and_one_that_is_gone(tmp_path: Path, account: str) -> None:
    async with batch_stack(tmp_path) as stack:
        batch, results, failed = await end(
            stack, await add(stack, [openai_line("a", "x")], account=account)
        )
    assert (batch.status, results) == ("completed", [])
    assert codes(failed) == [(403, "account_disabled")]


@pytest.mark.rule("accounts.batches")
async def test_terms_are_those_of_when_a_line_runs(tmp_path: Path) -> None:
    """Also those of an account that was made after the process had read the store."""
    opened = asyncio.Event()

    def script(request: EngineRequest) -> Sequence[Step]:
        return (Gate(opened), Text("done"))

    engine = ScriptedEngine(served_id=MODEL, script=script, slots=1)
    async with batch_stack(tmp_path, engine) as stack:
        assert stack.services.accounts is not None
        admin = Administration(stack.services.accounts)
        await admin.create_account(AccountTerms(), "new")
        lines = [openai_line(f"r{n}", "x") for n in range(40)]
        batch = await add(stack, lines, account="new")

        async def runs() -> bool:
            return await engine.running() > 0

        await until(runs)
        await admin.change_account("new", {"models": []})
        await stack.services.directory.refresh()
        opened.set()
        batch, results, failed = await end(stack, batch)
    assert batch.status == "completed"
    assert 1 <= len(results) < 40
    assert set(codes(failed)) == {(403, "model_access_denied")}
    assert len(results) + len(failed) == 40
