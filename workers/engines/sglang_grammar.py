"""Tries grammars out before SGLang gets them; see `sglang_grammar_process` for why and how.

Verdicts are remembered, so a schema that comes with every request is tried once.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

from schemas.errors import GenerationFailed
from workers.engines.sglang_grammar_process import OK, GrammarRecord, TokenizerRecord

TIME_LIMIT_S: Final = 4.0
MEMORY_LIMIT: Final = 2 << 30
_MOST_AT_ONCE: Final = 2
_MOST_REMEMBERED: Final = 4096
_PROCESS: Final = "workers.engines.sglang_grammar_process"


class GrammarTrial:
    """Compiles grammars in another process.

    Args:
        time_limit_s: For one grammar, in seconds of one processor.
    """

    def __init__(self, *, time_limit_s: float = TIME_LIMIT_S) -> None:
        self._time_limit_s = time_limit_s
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._setup = b""
        self._number = 0
        self._waiting: dict[int, asyncio.Future[str]] = {}
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()
        self._running: dict[bytes, asyncio.Task[str]] = {}
        self._places = asyncio.Semaphore(_MOST_AT_ONCE)

    async def start(self, tokenizer_info: Callable[[], str], *, any_whitespace: bool) -> None:
        """Start the process.

        Args:
            tokenizer_info: Returns XGrammar's `TokenizerInfo`, serialised.
            any_whitespace: How SGLang compiles JSON schemas.
        """
        setup = TokenizerRecord(
            info=await asyncio.to_thread(tokenizer_info),
            time_limit_s=self._time_limit_s,
            memory_limit=MEMORY_LIMIT,
            any_whitespace=any_whitespace,
        )
        self._setup = msgspec.json.encode(setup) + b"\n"
        await self._spawn()

    async def passes(self, kind: str, text: str) -> bool:
        """Whether a grammar compiles within the limits, and something obeys it.

        Args:
            kind: SGLang's name of its parameter.
            text: The grammar.

        Raises:
            GenerationFailed: The process was lost.
        """
        key = hashlib.sha256(f"{kind}:{text}".encode()).digest()
        if (verdict := self._verdicts.get(key)) is not None:
            self._verdicts.move_to_end(key)
            return verdict == OK
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = asyncio.create_task(self._try(key, kind, text))
            running.add_done_callback(lambda _: self._running.pop(key, None))
        # Others may wait for the same verdict, so it is worked out although one of them leaves.
        return await asyncio.shield(running) == OK

    async def stop(self) -> None:
        """End the process and what it runs."""
        for task in (*self._running.values(), self._reading):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, GenerationFailed):
                    await task
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            self._process = None

    async def _try(self, key: bytes, kind: str, text: str) -> str:
        async with self._places:
            if self._process is None or self._process.returncode is not None:
                await self._spawn()
            assert self._process is not None
            assert self._process.stdin is not None, "it was made with a pipe"
            self._number += 1
            number = self._number
            verdict = self._waiting[number] = asyncio.get_running_loop().create_future()
            record = GrammarRecord(number=number, kind=kind, text=text)
            try:
                self._process.stdin.write(msgspec.json.encode(record) + b"\n")
                await self._process.stdin.drain()
                found: str = await verdict
            except OSError:
                raise _lost() from None
            finally:
                self._waiting.pop(number, None)
        self._verdicts[key] = found
        if len(self._verdicts) > _MOST_REMEMBERED:
            self._verdicts.popitem(last=False)
        return found

    async def _spawn(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", _PROCESS),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        self._reading = asyncio.create_task(self._read(self._process))
        assert self._process.stdin is not None, "it was made with a pipe"
        self._process.stdin.write(self._setup)
        await self._process.stdin.drain()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None, "it was made with a pipe"
        async for line in process.stdout:
            number, verdict = line.decode().split()
            waiting = self._waiting.get(int(number))
            if waiting is not None and not waiting.done():
                waiting.set_result(verdict)
        await process.wait()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(_lost())


def _lost() -> GenerationFailed:
    return GenerationFailed("The model failed to answer.", diagnostic="grammar process lost")
