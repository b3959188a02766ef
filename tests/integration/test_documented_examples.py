"""The examples of the pages, run: what is typed with curl, in Python and with `headrace`.

A service answers at the address that the pages use, over the memory transport, with batches; its
engine is scripted. A JSON or SSE block marked `answer` is what the block before it must print, not
in its words but in its shape. What needs Docker, a cluster, a model or hours is left to
`tests/unit/test_documented_commands.py`, which reads it.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeGuard

import orjson
import pytest
import structlog
from click.testing import CliRunner

from ingress.__main__ import main
from tests.fixtures.batches import FAST, run_batcher
from tests.fixtures.pages import DOCS, Block, blocks, commands_of, name_of, pages
from tests.fixtures.stack import memory_stack
from workers.engines.scripted import ScriptedEngine

ADDRESS = "http://127.0.0.1:8000"
MODEL = "gemma-3-270m"
KEY = "hr_documented_key"
CONSOLE_KEY = "console-key-of-the-pages"

RUN = {"accounts", "keys", "usage", "database", "batch"}
"""Commands of ours that are over soon; but `batch run` loads a model."""

NOT_RUN = {"docker", "kubectl", "helm", "make", "pip", "python"}


@dataclass
class Reader:
    """Somebody who types what one page says, in a directory and a home of their own.

    Attributes:
        printed: By the last block that was run.
        key_name: Of the key that was made last; the pages' own stands for it.
        names: What Python blocks have defined.
        ran: Blocks, so far.
    """

    url: str
    directory: Path
    environment: dict[str, str]
    printed: str = ""
    key_name: str = ""
    names: dict[str, Any] = field(default_factory=dict)
    ran: int = 0

    async def read(self, block: Block, following: Block | None) -> None:
        """Do what a block says; or look whether the one before has printed it."""
        if is_answer(block):
            check_answer(block, self.printed)
        elif block.language == "sh":
            status = int(following.mark[1] or 200) if is_answer(following) else 200
            await self._type(block, status)
        elif block.language == "python":
            await self._run_python(block)

    async def _type(self, block: Block, status: int) -> None:
        self.printed = ""
        script = block.text.replace(ADDRESS, self.url)
        ours = any(words[0] == "headrace" for words in commands_of(script))
        for piece in pieces(script) if ours else (script,):
            typed = commands_of(piece)
            if not typed or any(is_left_out(words) for words in typed):
                continue
            if piece.startswith("headrace "):
                await self._run_headrace(piece)
            elif block.mark == ("endless", ""):
                await self._run_endless(piece)
            else:
                await self._run_shell(piece, status)
            self.ran += 1

    async def _run_shell(self, script: str, status: int) -> None:
        """In bash; what it exports stays. Every answer that curl gets has this status."""
        kept = self.directory / "environment"
        shell = await self._bash(f'{script}\nenv -0 > "{kept}"')
        async with asyncio.timeout(20):
            printed, told = (part.decode() for part in await shell.communicate())
        self.printed = printed
        assert shell.returncode == 0, told
        assert set(re.findall(r"^status (\d+)$", told, re.M)) <= {str(status)}, printed
        pairs = kept.read_text().rstrip("\0").split("\0")
        self.environment.update(dict(pair.split("=", 1) for pair in pairs))

    async def _run_endless(self, script: str) -> None:
        """What ends only when its reader leaves, which here is soon."""
        shell = await self._bash(script)
        assert shell.stdout is not None
        try:
            async with asyncio.timeout(20):
                await shell.stdout.readuntil(b"\n\n")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGTERM)
            await shell.communicate()

    async def _bash(self, script: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", script),
            cwd=self.directory,
            env=self.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )

    async def _run_headrace(self, line: str) -> None:
        words = [re.sub(r"^key_\w{8}$", self.key_name, word) for word in commands_of(line)[0]]
        runner = CliRunner(env={**self.environment, "COLUMNS": "200"})
        with contextlib.chdir(self.directory):
            done = await asyncio.to_thread(runner.invoke, main, words[1:])
        assert done.exit_code == 0, (line, done.output)
        self.printed = done.stdout
        if key := re.search(r"\bhr_(\w{8})_", done.stdout):
            self.key_name = f"key_{key[1]}"

    async def _run_python(self, block: Block) -> None:
        text = block.text.replace(ADDRESS, self.url).replace("time.sleep(5)", "time.sleep(0.02)")
        code = compile(text, str(block), "exec")
        printed = io.StringIO()
        with (
            contextlib.redirect_stdout(printed),
            contextlib.chdir(self.directory),
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.setenv("HEADRACE_API_KEY", self.environment["HEADRACE_API_KEY"])
            await asyncio.to_thread(exec, code, self.names)
        self.printed = printed.getvalue()
        assert self.printed.strip() or "print(" not in text
        self.ran += 1


def is_answer(block: Block | None) -> TypeGuard[Block]:
    return block is not None and block.mark is not None and block.mark[0] == "answer"


def is_left_out(words: list[str]) -> bool:
    """What starts a service, or needs what a test has not."""
    if words[0] == "headrace":
        return words[1] not in RUN or words[1:3] == ["batch", "run"]
    return words[0] in NOT_RUN or words[:2] == ["cp", ".env.example"]


def pieces(script: str) -> Iterator[str]:
    """Lines of ours one by one, and what stands between them."""
    others: list[str] = []
    for line in script.replace("\\\n", " ").splitlines():
        if line.startswith("headrace "):
            yield "\n".join(others)
            others = []
            yield line
        else:
            others.append(line)
    yield "\n".join(others)


def shape(value: Any) -> Any:
    """What a value is, whatever it says."""
    if isinstance(value, Mapping):
        return {name: shape(part) for name, part in value.items()}
    if isinstance(value, list):
        return [shape(part) for part in value]
    return type(value).__name__


def events(text: str) -> list[Any]:
    """The lines of a stream by their shapes; pieces of one thing count once."""
    found: list[Any] = []
    for line in filter(None, text.splitlines()):
        kind, _, data = line.partition(": ")
        shown = (kind, shape(orjson.loads(data)) if data.startswith("{") else data)
        if found[-1:] != [shown] and found[-2:-1] != [shown]:
            found.append(shown)
    return found


def check_answer(block: Block, printed: str) -> None:
    if block.language == "sse":
        assert events(printed) == events(block.text)
    else:
        assert shape(orjson.loads(printed)) == shape(orjson.loads(block.text))


@pytest.fixture(autouse=True)
def logs_aside() -> Iterator[None]:
    """The service is in this process, and its log must not be in what the commands print."""
    with structlog.testing.capture_logs():
        yield


@asynccontextmanager
async def services(directory: Path) -> AsyncIterator[tuple[str, str]]:
    """The addresses of one that is open to this machine, and of one that asks for a key."""
    place = directory / "service"
    place.mkdir()
    async with (
        memory_stack(ScriptedEngine(served_id=MODEL), files=place) as stack,
        run_batcher(stack.services, FAST),
        memory_stack(
            ScriptedEngine(served_id=MODEL), api_keys=(KEY,), console_key=CONSOLE_KEY
        ) as closed,
    ):
        yield stack.url, closed.url


def reader(page: Path, directory: Path, url: str) -> Reader:
    own = directory / name_of(page).replace("/", "-")
    for path in ("home/.local/share/headrace", "curl"):
        (own / path).mkdir(parents=True)
    (own / "curl/.curlrc").write_text('silent\nwrite-out = "%{stderr}status %{http_code}\\n"\n')
    (own / "questions.jsonl").write_text(QUESTIONS)
    return Reader(
        url=url,
        directory=own,
        environment={
            "PATH": os.environ["PATH"],  # noqa: TID251 - a shell needs it
            "HOME": str(own / "home"),
            "CURL_HOME": str(own / "curl"),
            "HEADRACE_URL": url,
            "HEADRACE_API_KEY": KEY,
            "HEADRACE_CONSOLE_KEY": CONSOLE_KEY,
            "HEADRACE_DATABASE": f"sqlite:///{own}/headrace.db",
        },
    )


def the_questions() -> str:
    """The file that the pages speak of, as one of them has it."""
    page = DOCS / "batch.md"
    (line,) = (b.text for b in blocks(page) if b.language == "json" and "custom_id" in b.text)
    return line


QUESTIONS = the_questions()


async def test_the_examples_work_as_the_pages_say(tmp_path: Path) -> None:
    wrong, ran = [], 0
    async with services(tmp_path) as (open_, closed):
        for page in pages():
            text = page.read_text()
            keyed = "$HEADRACE_API_KEY" in text or "$HEADRACE_CONSOLE_KEY" in text
            someone = reader(page, tmp_path, closed if keyed else open_)
            told = list(blocks(page))
            for block, following in zip_longest(told, told[1:]):
                try:
                    await someone.read(block, following)
                except Exception as error:
                    wrong.append(f"{block}: {type(error).__name__}: {error}")
            ran += someone.ran
    assert not wrong, "\n\n".join(wrong)
    assert ran > 25
