"""A process that compiles grammars to see whether they can be, each in a child of its own.

A small grammar may take minutes to compile, gigabytes of memory or the whole process with it.
Inside SGLang's scheduler nothing can stop that. So a grammar is compiled here first: the child has
a time and a memory limit that the kernel enforces, and dies alone.

Standard input has one JSON value per line: first the tokenizer, then grammars. Standard output has
one line per grammar, `<number> <verdict>`, in the order in which they are done. The process ends
with its input.

Source: XGrammar 0.2.7, which SGLang 0.5.23 compiles with; compiled with the same options here.
"""

from __future__ import annotations

import os
import random
import resource
import selectors
import signal
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec

OK: Final = "ok"
BAD: Final = "bad"  # does not compile, or no text obeys it
OVER: Final = "over"  # beyond the limits

_STEPS: Final = 24
"""Tokens decoded for trial."""

_SLOWEST_STEP_S: Final = 0.2
"""All requests of a batch wait while a grammar works out what may come next."""


_THREADS: Final = min(4, os.cpu_count() or 1)

_STUCK: Final = 10
"""So many time limits by the clock are too much however busy the machine is."""


class TokenizerRecord(msgspec.Struct):
    """The first line.

    Attributes:
        info: XGrammar's `TokenizerInfo`, serialised.
        time_limit_s: For one grammar, in seconds of one processor.
        memory_limit: For one grammar, in bytes above what the process has.
        any_whitespace: How SGLang compiles JSON schemas.
    """

    info: str
    time_limit_s: float
    memory_limit: int
    any_whitespace: bool


class GrammarRecord(msgspec.Struct):
    """A later line.

    Attributes:
        kind: `json_schema`, `regex`, `ebnf` or `structural_tag`.
    """

    number: int
    kind: str
    text: str


def main() -> None:
    """Serve until standard input ends."""
    import xgrammar

    running: dict[int, int] = {}  # process id -> number of its grammar
    lines = _lines(running)
    setup = msgspec.json.decode(next(lines), type=TokenizerRecord)
    tokenizer = xgrammar.TokenizerInfo.deserialize_json(setup.info)
    for line in lines:
        record = msgspec.json.decode(line, type=GrammarRecord)
        child = os.fork()
        if child == 0:
            _try(record, setup, tokenizer)
        running[child] = record.number


def _lines(running: dict[int, int]) -> Iterator[bytes]:
    """Lines of standard input; between them, children that have ended are reported."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(woken, selectors.EVENT_READ)
    waiting = b""
    while True:
        for key, _ in selector.select():
            if key.fd == woken:
                os.read(woken, 4096)
                _report(running)
                continue
            chunk = os.read(0, 1 << 20)
            if not chunk:
                return
            *lines, waiting = (waiting + chunk).split(b"\n")
            yield from lines


def _report(running: dict[int, int]) -> None:
    while running:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            return
        verdict = {0: OK, 1: BAD}.get(os.waitstatus_to_exitcode(status), OVER)
        os.write(1, f"{running.pop(child)} {verdict}\n".encode())


def _try(record: GrammarRecord, setup: TokenizerRecord, tokenizer: Any) -> None:
    """Compile a grammar in this process and end it: 0 is good, 1 is bad, all else is too much."""
    signal.set_wakeup_fd(-1)
    # Processor time, or a busy machine would refuse what is fine; their signals end the process.
    signal.setitimer(signal.ITIMER_PROF, setup.time_limit_s * _THREADS)
    signal.setitimer(signal.ITIMER_REAL, setup.time_limit_s * _STUCK)
    limit = _address_space() + setup.memory_limit
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(10)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)  # the compiler's messages quote the grammar
    try:
        grammar = _compile(record, setup, tokenizer)
    except RuntimeError:
        os._exit(1)
    except BaseException:
        os._exit(2)
    try:
        os._exit(_decode_some(grammar, tokenizer))
    except BaseException:
        os._exit(2)


def _compile(record: GrammarRecord, setup: TokenizerRecord, tokenizer: Any) -> Any:
    import xgrammar

    compiler = xgrammar.GrammarCompiler(tokenizer, max_threads=_THREADS, cache_enabled=False)
    match record.kind:
        case "json_schema":
            return compiler.compile_json_schema(record.text, any_whitespace=setup.any_whitespace)
        case "regex":
            return compiler.compile_regex(record.text)
        case "ebnf":
            return compiler.compile_grammar(record.text)
        case _:
            return compiler.compile_structural_tag(record.text)


def _decode_some(grammar: Any, tokenizer: Any) -> int:
    """Follow the grammar for some tokens: it must let one through, and not take long to say so."""
    import xgrammar

    chance = random.Random(0)
    matcher = xgrammar.GrammarMatcher(grammar)
    mask = xgrammar.allocate_token_bitmask(1, tokenizer.vocab_size)
    for _ in range(_STEPS):
        begun = time.thread_time()
        matcher.fill_next_token_bitmask(mask)
        if time.thread_time() - begun > _SLOWEST_STEP_S:
            return 2
        token = _allowed(mask[0].tolist(), tokenizer.vocab_size, chance)
        if token is None:
            return 1
        if not matcher.accept_token(token) or matcher.is_terminated():
            return 0
    return 0


def _allowed(words: list[int], vocab_size: int, chance: random.Random) -> int | None:
    """A token whose bit is set, the first after a random place; None if there is none.

    Looks at words and not at tokens: there may be a quarter of a million of them.
    """
    start = chance.randrange(len(words))
    for index in (*range(start, len(words)), *range(start)):
        bits = words[index] & 0xFFFF_FFFF
        if bits:
            token: int = index * 32 + (bits & -bits).bit_length() - 1
            if token < vocab_size:
                return token
    return None


def _address_space() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123 - nothing to join
        return int(statm.read().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main()
