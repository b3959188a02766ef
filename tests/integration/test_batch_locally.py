"""`headrace batch run`: a file answered by one process, however often it is interrupted."""

from __future__ import annotations

import asyncio
import io
import re
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import orjson
import pytest
from click.testing import CliRunner
from rich.console import Console

from ingress.client.commands import batch
from ingress.client.view import BatchView
from ingress.embedded_batch import LocalRun
from ingress.options import data_directory
from ingress.stores.sql import SqlStore
from schemas.batch import Shape
from tests.fixtures.batches import ACCOUNT, openai_line, said
from tests.fixtures.processes import headrace
from tests.fixtures.requests import path_of
from tests.fixtures.stack import until
from workers.settings import WorkerSettings

MODEL = "some-model"


def written(path: Path, lines: Sequence[bytes]) -> Path:
    path.write_bytes(b"\n".join(lines))
    return path


def line(custom_id: str, text: str = said("fine"), **changes: object) -> bytes:
    return openai_line(custom_id, text, model=MODEL, **changes)


def names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def custom_ids(path: Path) -> list[str]:
    return sorted(orjson.loads(text)["custom_id"] for text in path.read_bytes().splitlines())


async def run_here(directory: Path, file: Path, endpoint: str) -> tuple[BatchView, str]:
    """Run a file with one slot; returns how it ended, and what was shown."""
    worker = WorkerSettings(model=MODEL, served_id=MODEL, engine="scripted", concurrency=1)
    shown = io.StringIO()
    with data_directory(directory) as data:
        run = LocalRun(
            file, endpoint, "1", worker, data, Console(file=shown, width=200), takes_ended=False
        )
        out = file.with_name("out.jsonl")
        view = await run.run(out, None, sys.stdout.buffer)
    return view, shown.getvalue()


async def interrupt(directory: Path, file: Path, endpoint: str) -> None:
    """Run a file until some of its requests are answered."""
    running = asyncio.create_task(run_here(directory, file, endpoint))
    await until((directory / "headrace.db").exists, timeout_s=30)
    store = await SqlStore.open(f"sqlite:///{directory / 'headrace.db'}")
    shape: Shape = "messages" if endpoint == "/v1/messages" else "openai"

    async def has_some() -> bool:
        page = await store.batches(ACCOUNT, shape, limit=1)
        return page is not None and any(batch.counts.succeeded > 1 for batch in page.items)

    await until(has_some, timeout_s=30)
    await store.close()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("dialect", ["chat", "messages"])
async def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, dialect: str) -> None:
    texts = ["[[k=1 ttft=60]]"] * 12
    # Either form of a line will do for messages: this is that of the other API.
    lines = [openai_line(f"r{n}", text, dialect, model=MODEL) for n, text in enumerate(texts)]
    lines.append(openai_line("bad", "x", dialect, model=MODEL, temperature=9))
    file = written(tmp_path / "x.jsonl", lines)
    data, endpoint = tmp_path / "data", path_of(dialect)
    await interrupt(data, file, endpoint)
    assert not (tmp_path / "out.jsonl").exists()

    ended, shown = await run_here(data, file, endpoint)
    assert (ended.total, ended.succeeded, ended.errored) == (13, 12, 1)
    assert ended.exit_status == 2
    done = re.match(r"\S+ in_progress (\d+)/13", shown)
    assert done is not None, shown
    assert int(done[1]) > 1
    good = [f"r{number}" for number in range(12)]
    if dialect == "messages":
        assert custom_ids(tmp_path / "out.jsonl") == sorted([*good, "bad"])
    else:
        assert custom_ids(tmp_path / "out.jsonl") == sorted(good)
        assert custom_ids(tmp_path / "out.errors.jsonl") == ["bad"]

    again, shown = await run_here(data, file, endpoint)
    assert again.batch_id != ended.batch_id


async def test_a_command_leaves_nothing_but_its_results(tmp_path: Path) -> None:
    request = {"max_tokens": 9, "model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
    file = written(tmp_path / "x.jsonl", [orjson.dumps({"custom_id": "a", "params": request})])
    share = tmp_path / "share"
    env = {"XDG_DATA_HOME": str(share), "HEADRACE_DATA": ""}
    command = ("batch", "run", str(file), "--engine", "scripted", "-o", "-")
    async with headrace(*command, log=tmp_path / "log", env=env, answers=True) as process:
        assert await process.process.wait() == 0, process.output()
    output = process.output()
    assert "completed: 1 of 1 requests succeeded" in output
    (result,) = [orjson.loads(text) for text in output.splitlines() if text.startswith("{")]
    assert result["custom_id"] == "a"
    assert result["result"]["message"]["model"] == MODEL
    assert names(share / "headrace" / "runs") == []


def test_a_directory_is_for_one_process_at_a_time(tmp_path: Path) -> None:
    place = tmp_path / "below" / "data"
    with data_directory(place) as data:
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        assert data.database == f"sqlite:///{place}/headrace.db"
        with pytest.raises(click.UsageError, match="Another process"), data_directory(place):
            pass
    with data_directory(place):
        pass
    with pytest.raises(click.UsageError, match="--data"), data_directory(place / "lock"):
        pass


@pytest.mark.parametrize(
    ("lines", "arguments", "says"),
    [
        ([line("a"), b"", line("a")], (), "x.jsonl:3: duplicate_custom_id: Line 1 "),
        ([line("a"), openai_line("b", "x", model="other")], (), "several models"),
        ([line("a")], ("--served-id", "other"), f"ask for {MODEL}, and this runs other"),
        ([line("a")], ("--engine", "upstream"), "--upstream-url"),
        ([line("a")], ("-o", "/nonexistent/x"), "no directory /nonexistent"),
        ([b'{"custom_id": "a"}'], (), "--endpoint"),
    ],
)
def test_misuse_is_told(
    tmp_path: Path, lines: Sequence[bytes], arguments: Sequence[str], says: str
) -> None:
    file = written(tmp_path / "x.jsonl", lines)
    command = ("run", str(file), "--engine", "scripted", "--data", str(tmp_path), *arguments)
    result = CliRunner(env={"COLUMNS": "200"}).invoke(batch, command)
    assert result.exit_code == 1
    assert says in " ".join(result.stderr.split())
