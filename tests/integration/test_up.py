"""`headrace up`: one command, one process tree, the printed line works, Ctrl-C ends all of it."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import stat
from collections.abc import Sequence
from pathlib import Path

import openai
import orjson
import psutil
import pytest
from click.testing import CliRunner

from ingress.client.commands import batch
from tests.fixtures.batches import answer_of, openai_line, said
from tests.fixtures.broker import Broker
from tests.fixtures.ports import free_port
from tests.fixtures.processes import Process, headrace, wait_ready


async def invitation(process: Process) -> str:
    """The curl line that it prints."""
    async with asyncio.timeout(30):
        while not (found := re.search(r"^\s*(curl .*)$", process.output(), re.MULTILINE)):
            await asyncio.sleep(0.05)
    return found.group(1)


async def run_pasted(line: str) -> bytes:
    curl = await asyncio.create_subprocess_exec(*shlex.split(line), stdout=asyncio.subprocess.PIPE)
    output, _ = await curl.communicate()
    assert curl.returncode == 0
    return output


async def check_ctrl_c_leaves_nothing(process: Process) -> None:
    parent = psutil.Process(process.pid)
    family = [parent, *parent.children(recursive=True)]
    assert len(family) > 1, "a supervisor and its child"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
    async with asyncio.timeout(20):
        await process.process.wait()
    _, alive = await asyncio.to_thread(psutil.wait_procs, family, timeout=5)
    assert [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []


async def check_answers(url: str, model: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        messages = [{"role": "user", "content": "Say something."}]
        body = await client.chat.completions.create(
            model=model, messages=messages, max_tokens=8, temperature=0
        )
        stream = await client.chat.completions.create(
            model=model, messages=messages, max_tokens=8, temperature=0, stream=True
        )
        text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
        assert text == (body.choices[0].message.content or "")
        assert body.usage is not None
        assert body.usage.completion_tokens == 8


async def check_batches(url: str, model: str, directory: Path, *, kept: bool) -> None:
    file, out = directory / "x.jsonl", directory / "out.jsonl"
    file.write_bytes(openai_line("one", said("fine"), model=model))
    command = ["submit", str(file), "--url", url, "-o", str(out)]
    result = await asyncio.to_thread(CliRunner().invoke, batch, command)
    data = directory / "up.data"
    if kept:
        assert result.exit_code == 0, result.output
        assert answer_of(orjson.loads(out.read_bytes())) == "fine"
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        assert (data / "headrace.db").exists()
    else:
        assert result.exit_code == 1
        assert "no files" in result.stderr
        assert not data.exists()


@pytest.mark.parametrize("over_broker", [False, True])
async def test_scripted(tmp_path: Path, broker: Broker, over_broker: bool) -> None:
    port = free_port()
    amqp: Sequence[str] = ("--amqp-url", broker.url, "--no-batch") if over_broker else ()
    name = f"scripted-{port}"
    command = ("up", "--engine", "scripted", "--served-id", name, "--port", str(port), *amqp)
    async with headrace(*command, log=tmp_path / "up.log") as process:
        url = f"http://127.0.0.1:{port}"
        await wait_ready(url, process, timeout_s=30)
        answer = orjson.loads(await run_pasted(await invitation(process)))
        assert answer["choices"][0]["message"]["content"]
        await check_answers(url, name)
        await check_batches(url, name, tmp_path, kept=not over_broker)
        await check_ctrl_c_leaves_nothing(process)
        assert "Traceback" not in process.output()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("up", "--engine", "upstream"), "--upstream-url"),
        (("up", "--engine", "scripted", "--host", "0.0.0.0"), "--api-key"),
        (("up", "--engine", "scripted", "--config", "/nonexistent.yaml"), "/nonexistent.yaml"),
        (("ingress",), "--amqp-url"),
        (("worker", "--model", "x"), "--amqp-url"),
        (("worker", "--model", "x", "--amqp-url", "http://x"), "amqp://"),
        (("batcher",), "--amqp-url"),
        (("nonsense",), "nonsense"),
    ],
)
async def test_misuse_is_told_and_ends(tmp_path: Path, args: tuple[str, ...], says: str) -> None:
    async with headrace(*args, log=tmp_path / "log", env={"HEADRACE_PORT": "0"}) as process:
        async with asyncio.timeout(30):
            assert await process.process.wait() != 0
        assert says in process.output()
        assert "Traceback" not in process.output()
