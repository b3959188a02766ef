"""`headrace batch` against a real service: what it prints, what it writes, how it ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest
import structlog
from click.testing import CliRunner, Result

from ingress.client.commands import batch
from tests.fixtures.batches import FAST, messages_line, openai_line, run_batcher, said
from tests.fixtures.broker import Proxy
from tests.fixtures.ports import free_port
from tests.fixtures.processes import headrace
from tests.fixtures.stack import Stack, memory_stack, until
from workers.engines.scripted import Gate, ScriptedEngine

KEY = "the-key"
NAME = "x.jsonl"


@asynccontextmanager
async def serving(directory: Path, engine: ScriptedEngine | None = None) -> AsyncIterator[Stack]:
    """A service with a batcher, which lets whoever has the key in."""
    place = directory / "service"
    place.mkdir()
    async with (
        memory_stack(engine, files=place, api_keys=(KEY,)) as stack,
        run_batcher(stack.services, FAST),
    ):
        yield stack


@pytest.fixture(autouse=True)
def logs_aside() -> Iterator[None]:
    """The service is in this process, and its log must not be in what the commands print."""
    with structlog.testing.capture_logs():
        yield


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with serving(tmp_path) as stack:
        yield stack


async def headrace_batch(
    url: str, *arguments: str | Path, key: str = KEY, columns: int = 200
) -> Result:
    """Run a command in a thread, as a terminal would in a process."""
    variables = {"HEADRACE_URL": url, "HEADRACE_API_KEY": key}
    runner = CliRunner(env={**variables, "COLUMNS": str(columns)})
    result = await asyncio.to_thread(runner.invoke, batch, [*map(str, arguments)])
    if not isinstance(result.exception, SystemExit | None):
        raise result.exception
    return result


def written(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def lines_of(data: bytes) -> dict[str, dict[str, object]]:
    """Result lines by custom id."""
    found = [orjson.loads(line) for line in data.splitlines()]
    assert len({line["custom_id"] for line in found}) == len(found)
    return {line["custom_id"]: line for line in found}


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


GOOD = openai_line("good", said("fine"))
BAD = openai_line("bad", said("fine"), temperature=9)


async def test_submit_waits_and_fetches(stack: Stack, tmp_path: Path) -> None:
    file = written(tmp_path / NAME, GOOD)
    out = tmp_path / "out.jsonl"
    stale = tmp_path / "out.errors.jsonl"
    stale.write_text("of another run")
    result = await headrace_batch(stack.url, "submit", file, "-o", out, "--metadata", "a=b=c")
    assert result.exit_code == 0
    assert "completed: 1 of 1 requests succeeded" in result.stderr
    assert result.stdout == ""
    assert lines_of(out.read_bytes()).keys() == {"good"}
    assert stale.read_bytes() == b""
    assert names(tmp_path) == {"service", NAME, stale.name, out.name}
    listed = await headrace_batch(stack.url, "list", "--json")
    (body,) = map(orjson.loads, listed.stdout.splitlines())
    assert body["metadata"] == {"a": "b=c"}


async def test_lines_that_failed_have_their_file_and_status(stack: Stack, tmp_path: Path) -> None:
    file = written(tmp_path / NAME, GOOD, BAD)
    out, errors = tmp_path / "out.jsonl", tmp_path / "failed.jsonl"
    arguments = ("-o", out, "--errors", errors, "--json")
    result = await headrace_batch(stack.url, "submit", file, *arguments)
    assert result.exit_code == 2
    body = orjson.loads(result.stdout)
    assert body["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    assert lines_of(out.read_bytes()).keys() == {"good"}
    assert lines_of(errors.read_bytes()).keys() == {"bad"}

    both = await headrace_batch(stack.url, "results", body["id"], "-o", "-")
    assert both.exit_code == 2
    assert lines_of(both.stdout_bytes).keys() == {"good", "bad"}


async def test_an_id_for_scripts_and_status_by_it(stack: Stack, tmp_path: Path) -> None:
    file = written(tmp_path / NAME, GOOD)
    submitted = await headrace_batch(stack.url, "submit", file, "--endpoint", "chat")
    assert submitted.exit_code == 0
    batch_id = submitted.stdout.strip()
    watched = await headrace_batch(stack.url, "status", batch_id, "--watch")
    assert watched.exit_code == 0
    assert watched.stdout == ""
    plain = await headrace_batch(stack.url, "status", batch_id)
    assert plain.stdout.startswith(f"{batch_id} completed: 1 of 1")
    table = await headrace_batch(stack.url, "list", columns=40)
    _, row = table.stdout.splitlines()
    assert row.split()[:3] == [batch_id, "completed", "/v1/chat/completions"]
    assert row.split()[-3:] == ["1", "0", "1"]


@pytest.mark.parametrize("as_openai", [False, True])
async def test_message_batches(stack: Stack, tmp_path: Path, as_openai: bool) -> None:
    if as_openai:
        lines = [openai_line("a", said("fine"), "messages")]
        lines += [openai_line("b", said("fine"), "messages", max_tokens=0)]
    else:
        lines = [messages_line("a", said("fine")), messages_line("b", said("fine"), max_tokens=0)]
    file = written(tmp_path / NAME, *lines)
    result = await headrace_batch(stack.url, "submit", file, "-o", tmp_path / "out.jsonl")
    assert result.exit_code == 2
    results = lines_of((tmp_path / "out.jsonl").read_bytes())
    kinds = {custom_id: line["result"]["type"] for custom_id, line in results.items()}  # type: ignore[index]
    assert kinds == {"a": "succeeded", "b": "errored"}
    batch_id = result.stderr.split()[0]
    assert batch_id.startswith("msgbatch_")
    refused = await headrace_batch(
        stack.url, "results", batch_id, "-o", tmp_path / "again", "--errors", tmp_path / "e"
    )
    assert refused.exit_code == 1
    assert "--errors" in refused.stderr


async def test_cancel(tmp_path: Path) -> None:
    gate = asyncio.Event()
    engine = ScriptedEngine(served_id="demo-model", script=lambda _: [Gate(gate)])
    async with serving(tmp_path, engine) as stack:
        file = written(tmp_path / NAME, GOOD)
        batch_id = (await headrace_batch(stack.url, "submit", file)).stdout.strip()
        early = await headrace_batch(stack.url, "results", batch_id, "-o", tmp_path / "out")
        assert early.exit_code == 1
        assert "has not ended yet" in early.stderr
        assert not (tmp_path / "out").exists()
        cancelled = await headrace_batch(stack.url, "cancel", batch_id)
        assert cancelled.exit_code == 0
        assert f"{batch_id} cancel" in cancelled.stderr
        watched = await headrace_batch(stack.url, "status", batch_id, "--watch")
        assert watched.exit_code == 3
        assert "cancelled: 0 of 1 requests succeeded, 1 failed" in watched.stderr


async def test_mistakes_are_found_before_the_upload(stack: Stack, tmp_path: Path) -> None:
    file = written(tmp_path / NAME, GOOD, b"", b"{nonsense", b'{"custom_id": "x"}', GOOD)
    result = await headrace_batch(stack.url, "submit", file)
    assert result.exit_code == 1
    assert f"{file}:3: invalid_json_line: " in result.stderr
    assert f"{file}:4: missing_required_parameter: " in result.stderr
    assert f"{file}:5: duplicate_custom_id: Line 1 " in result.stderr
    assert (await headrace_batch(stack.url, "files", "list")).stdout == ""

    sent = await headrace_batch(stack.url, "submit", file, "--no-check", "--watch")
    assert sent.exit_code == 3
    assert "line 3: invalid_json_line: " in sent.stderr
    assert "failed" in sent.stderr


async def test_files_are_listed_and_deleted(stack: Stack, tmp_path: Path) -> None:
    file = written(tmp_path / NAME, GOOD)
    await headrace_batch(stack.url, "submit", file, "--watch")
    listed = await headrace_batch(stack.url, "files", "list")
    rows = [line.split() for line in listed.stdout.splitlines()]
    assert {row[1] for row in rows} == {"batch", "batch_output"}
    assert [row[3] for row in rows if row[1] == "batch"] == [NAME]
    deleted = await headrace_batch(stack.url, "files", "delete", *(row[0] for row in rows))
    assert deleted.exit_code == 0
    assert (await headrace_batch(stack.url, "files", "list")).stdout == ""


@pytest.mark.parametrize("key", ["wrong", ""])
async def test_a_wrong_key_and_none(stack: Stack, tmp_path: Path, key: str) -> None:
    file = written(tmp_path / NAME, GOOD)
    result = await headrace_batch(stack.url, "submit", file, key=key)
    assert result.exit_code == 1
    assert "key" in result.stderr.lower()
    assert ("--api-key" in result.stderr) == (key == "")


async def test_the_services_own_words(stack: Stack) -> None:
    for batch_id in ("batch_" + 24 * "0", "msgbatch_" + 24 * "0"):
        result = await headrace_batch(f"{stack.url}/v1/", "status", batch_id)
        assert result.exit_code == 1
        assert "Error: There is no such " in result.stderr


async def test_a_service_that_is_not_there(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    result = await headrace_batch(url, "list")
    assert result.exit_code == 1
    assert f"The service at {url} cannot be reached" in result.stderr


async def test_a_watch_outlives_an_outage(stack: Stack, tmp_path: Path) -> None:
    file = written(tmp_path / NAME, GOOD)
    batch_id = (await headrace_batch(stack.url, "submit", file)).stdout.strip()
    turned_away = 0

    async def turn_away(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal turned_away
        turned_away += 1
        writer.transport.abort()

    proxy = Proxy(stack.url)
    await proxy.open()
    url = proxy.url.replace("@", "")
    await proxy.refuse()
    away = await asyncio.start_server(turn_away, "127.0.0.1", int(url.rpartition(":")[2]))
    watching = asyncio.create_task(headrace_batch(url, "status", batch_id, "--watch"))
    await until(lambda: turned_away >= 2)
    away.close()
    await proxy.open()
    result = await watching
    await proxy.close()
    assert "cannot be reached" in result.stderr
    assert "Trying again" in result.stderr
    assert result.exit_code == 0


async def test_ctrl_c_leaves_the_batch_and_says_how_to_come_back(tmp_path: Path) -> None:
    gate = asyncio.Event()
    engine = ScriptedEngine(served_id="demo-model", script=lambda _: [Gate(gate)])
    async with serving(tmp_path, engine) as stack:
        file = written(tmp_path / NAME, GOOD)
        command = ("batch", "submit", str(file), "--watch", "--url", stack.url)
        async with headrace(
            *command, log=tmp_path / "log", env={"HEADRACE_API_KEY": KEY}
        ) as process:
            await until(lambda: "in_progress" in process.output(), timeout_s=60)
            process.process.send_signal(signal.SIGINT)
            async with asyncio.timeout(20):
                assert await process.process.wait() == 130
            *_, last = process.output().splitlines()
            assert "Traceback" not in process.output()
        gate.set()
        again = last.partition("headrace batch ")[2].split()
        assert again[0] == "status"
        assert (await headrace_batch(stack.url, *again)).exit_code == 0
