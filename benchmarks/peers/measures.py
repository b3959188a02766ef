"""The measures: each loads one target once, and returns what it has seen.

A target that cannot do what is asked (hold so many streams, speak a dialect) has no figure there. A
reply that is wrong is `BadReply`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec
import psutil

from benchmarks.histogram import Histogram
from benchmarks.load import (
    Ask,
    BadReply,
    Connection,
    Samples,
    ask,
    load,
    percentile,
    probe,
)
from benchmarks.processes import Target, cpu_of, members

PROBE_EVERY_S = 0.02
HANG_UPS = 20
PATIENCE_S = 1.5
"""An engine that has not noticed a client's leaving for so long is taken never to notice."""
HELD = (1000, 5000)
STILL_S = 5.0
"""Who lets no more streams begin for so long holds no more."""
WARMING = 64


@dataclass(slots=True)
class Seen:
    """What one measure saw of one target in one round.

    Attributes:
        figures: By name; None where there is none.
        durations: By name, many of them, in seconds.
    """

    figures: dict[str, float | None] = field(default_factory=dict)
    durations: dict[str, Histogram] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a measure is taken.

    Attributes:
        seconds: Of each of its phases.
        engine: The process behind all targets.
        engine_port: Its own.
    """

    seconds: float
    engine: psutil.Process
    engine_port: int


Run = Callable[[Target, Setting], Coroutine[Any, Any, Seen]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One of them.

    Attributes:
        about: What it does, for a reader.
        tells: Words for what it tells, for who wants only that.
        once: It is taken once in a run, not in every round.
        cost_s: About how long it takes, in phases and in seconds beside them.
    """

    name: str
    about: str
    run: Run
    tells: tuple[str, ...] = ()
    once: bool = False
    cost_s: tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Moment:
    """What the clocks say, and what has come."""

    parts: dict[str, float]
    engine: float
    client: float
    clock: float
    tokens: int
    replies: int


class _Span:
    """CPU time, tokens and replies between two moments.

    Args:
        target: Whose CPU time; its processes are looked for now, before it is loaded.
        setting: Tells of the engine.
    """

    def __init__(self, target: Target, setting: Setting) -> None:
        self._parts = {name: members(process) for name, process in target.parts}
        self._engine = members(setting.engine)
        self._samples: Samples
        self._before: _Moment

    def begin(self, samples: Samples) -> None:
        self._samples = samples
        self._before = self._now()

    def _now(self) -> _Moment:
        return _Moment(
            parts={name: cpu_of(pids) for name, pids in self._parts.items()},
            engine=cpu_of(self._engine),
            client=time.process_time(),
            clock=time.monotonic(),
            tokens=self._samples.tokens,
            replies=self._samples.replies,
        )

    def end(self) -> dict[str, float | None]:
        """Figures since the beginning, per token."""
        before, now = self._before, self._now()
        seen = now.tokens - before.tokens
        if not seen:
            return {"cpu_us": None, "tokens_per_s": 0.0}
        return {
            **self._spent("cpu_us", now, seen),
            "engine_us": (now.engine - before.engine) / seen * 1e6,
            "client_us": (now.client - before.client) / seen * 1e6,
            "tokens_per_s": seen / (now.clock - before.clock),
        }

    def per_reply(self) -> dict[str, float | None]:
        """Figures since the beginning, per whole reply."""
        now = self._now()
        seen = now.replies - self._before.replies
        if not seen:
            return {"request_us": None}
        spent = self._spent("request_us", now, seen)
        return {**spent, "requests_per_cpu_s": 1e6 / spent["request_us"]}

    def _spent(self, name: str, now: _Moment, seen: int) -> dict[str, float]:
        """Microseconds for each of what has been seen: all, and by part."""
        parts = {
            part: (now.parts[part] - was) / seen * 1e6 for part, was in self._before.parts.items()
        }
        return {name: sum(parts.values()), **{f"{name}.{part}": us for part, us in parts.items()}}


def _request(target: Target, **given: object) -> Ask:
    return ask(target.model, key=target.key, **given)  # type: ignore[arg-type]  # handed on


def streams(count: int, *, gap_ms: int, phases: int = 1) -> Run:
    """So many replies at once and, in a second phase, single tokens beside them."""

    async def run(target: Target, setting: Setting) -> Seen:
        stream = _request(target, tokens=64, gap_ms=gap_ms)
        # A target that is behind gets the same time as any other, but for the last of its probes.
        span = _Span(target, setting)
        async with load(target.port, stream, streams=count, phases=phases) as seen:
            span.begin(seen)
            await asyncio.sleep(setting.seconds)
            figures = span.end()
            probed = await probe(
                target.port,
                _request(target, tokens=1),
                every_s=PROBE_EVERY_S,
                seconds=setting.seconds,
                patience_s=2 * setting.seconds,
            )
            figures["offered_per_s"] = count * 1000 / gap_ms
            if seen.gaps_s:
                figures["uneven"] = max(seen.gaps_s) / percentile(seen.gaps_s, 0.5)
            return Seen(
                figures, {"ttft": Histogram.of(probed.ttft_s), "late": Histogram.of(seen.late_s)}
            )

    return run


async def saturation(target: Target, setting: Setting) -> Seen:
    """Replies as fast as they can come."""
    stream = _request(target, tokens=512)
    span = _Span(target, setting)
    async with load(target.port, stream, streams=64) as seen:
        span.begin(seen)
        await asyncio.sleep(setting.seconds)
        figures = span.end()
    spent = figures["cpu_us"]
    return Seen({**figures, "tokens_per_cpu_s": 1e6 / spent if spent else None})


async def short(target: Target, setting: Setting) -> Seen:
    """Short replies that are not streamed, as fast as they can come."""
    single = _request(target, tokens=8, stream=False)
    span = _Span(target, setting)
    async with load(target.port, single, streams=32) as seen:
        span.begin(seen)
        await asyncio.sleep(setting.seconds)
        return Seen(span.per_reply())


async def dialects(target: Target, setting: Setting) -> Seen:
    """32 streams in step, in every dialect of the target."""
    if len(target.dialects) < 2:
        return Seen()
    spent: dict[str, float | None] = {}
    for dialect in random.sample(target.dialects, len(target.dialects)):
        stream = _request(target, tokens=64, gap_ms=20, dialect=dialect)
        span = _Span(target, setting)
        async with load(target.port, stream, streams=32) as seen:
            span.begin(seen)
            await asyncio.sleep(setting.seconds)
            spent[dialect] = span.end()["cpu_us"]
    figures = {f"{dialect}_us": us for dialect, us in spent.items()}
    for name in ("messages", "responses"):
        one, chat = spent.get(name), spent.get("chat")
        if one and chat:
            figures[f"{name}_to_chat"] = one / chat
    return Seen(figures)


async def memory(target: Target, setting: Setting) -> Seen:
    """Streams that have begun and say no more."""
    asked = _request(target, tokens=2, marks="[[hang:1]]")
    # What is only made for the first requests belongs to nobody's stream.
    async with load(target.port, _request(target, tokens=64), streams=WARMING):
        pass
    await asyncio.sleep(1.0)
    base = target.memory()
    figures: dict[str, float | None] = {"base_mib": base / (1 << 20)}
    samples, open_ones = Samples(), list[Connection]()
    try:
        for wanted in HELD:
            held = await _hold(target, asked, samples, open_ones, wanted)
            figures[f"held_{wanted}"] = held
            enough = held == wanted
            await asyncio.sleep(0.5)
            figures[f"kib_{wanted}"] = (target.memory() - base) / held / 1024 if enough else None
            if not enough:
                break
    finally:
        for connection in open_ones:
            connection.close()
        await asyncio.sleep(1.0)
        await _engine(setting, "/release")
    return Seen(figures)


async def _hold(
    target: Target, asked: Ask, samples: Samples, open_ones: list[Connection], wanted: int
) -> int:
    """Open more streams until there are `wanted`, or no more come; tells how many there are."""
    numbers = iter(range(wanted - len(open_ones)))
    held = len(open_ones)

    async def open_some() -> None:
        nonlocal held
        for _ in numbers:
            connection = await Connection.open(target.port, samples)
            open_ones.append(connection)
            connection.begin(asked)
            assert connection.first_token is not None
            await connection.first_token
            held += 1

    opening = asyncio.gather(*(open_some() for _ in range(32)))
    while not opening.done():
        before = held
        await asyncio.wait((opening,), timeout=STILL_S)
        if held == before:
            opening.cancel()
    with suppress(asyncio.CancelledError):
        await opening
    return held


HANG_UP_PHASES: Mapping[str, str] = {
    "queued": "hold=head",
    "prefill": "hold=token",
    "stream": "k=5000 gap=20",
}


async def hang_up(target: Target, setting: Setting) -> Seen:
    """Clients that leave, each `HANG_UPS` times: the engine tells when it noticed."""
    if not target.hang_up:
        return Seen()
    seen = Seen()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{setting.engine_port}") as engine:
        for phase, marks in HANG_UP_PHASES.items():
            tags = [f"{target.name.replace('-', '')}{phase}{number}" for number in range(HANG_UPS)]
            took = await asyncio.gather(*(_leave(target, engine, marks, tag) for tag in tags))
            noticed = [seconds for seconds in took if seconds is not None]
            seen.figures[f"{phase}_noticed"] = len(noticed)
            seen.figures[f"{phase}_ms"] = percentile(noticed, 0.5) * 1000 if noticed else None
            await engine.get("/release")
            await asyncio.sleep(0.3)
    return seen


async def _leave(
    target: Target, engine: aiohttp.ClientSession, marks: str, tag: str
) -> float | None:
    """Ask, wait until the engine has it, leave, and tell after how long the engine noticed."""
    asked = _request(target, tokens=2, marks=f"[[{marks} tag={tag}]]")
    connection = await Connection.open(target.port, Samples())
    connection.begin(asked)
    if await _told(engine, tag, lambda told: told is not None, 10.0) is None:
        raise BadReply("a request did not reach the engine")
    await asyncio.sleep(random.uniform(0.1, 0.2))  # at no rhythm of the engine's
    left_at = time.monotonic()
    connection.close()
    told = await _told(engine, tag, lambda told: bool(told and told["aborted"]), PATIENCE_S)
    return None if told is None else max(float(told["ended"]) - left_at, 0.0)


async def _told(
    engine: aiohttp.ClientSession,
    tag: str,
    enough: Callable[[dict[str, float] | None], bool],
    patience_s: float,
) -> dict[str, float] | None:
    """What the engine tells of a request, as soon as that is enough; None if it is too late."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        async with engine.get("/seen", params={"tag": tag}) as response:
            told = msgspec.json.decode(await response.read())
        if enough(told):
            return dict(told)
        await asyncio.sleep(0.02)
    return None


async def _engine(setting: Setting, path: str) -> None:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{setting.engine_port}") as engine:
        await engine.get(path)


_OF_STREAMS = ("ttft", "transit", "cpu")

MEASURES: tuple[Measure, ...] = (
    Measure(
        name="memory",
        about="open streams that say nothing, first 1,000 and then 5,000",
        run=memory,
        once=True,
        cost_s=(0, 12),
    ),
    Measure(
        name="streams-1",
        about="1 stream, a token every 10 ms",
        run=streams(1, gap_ms=10),
        tells=_OF_STREAMS,
        cost_s=(2, 0.7),
    ),
    Measure(
        name="streams-32",
        about="32 streams in step, a token every 20 ms",
        run=streams(32, gap_ms=20),
        tells=_OF_STREAMS,
        cost_s=(2, 0.7),
    ),
    Measure(
        name="streams-256",
        about="256 streams in step, a token every 50 ms",
        run=streams(256, gap_ms=50),
        tells=_OF_STREAMS,
        cost_s=(2, 0.9),
    ),
    Measure(
        name="staggered-32",
        about="32 streams, a token every 20 ms, at 20 different instants",
        run=streams(32, gap_ms=20, phases=20),
        tells=_OF_STREAMS,
        cost_s=(2, 0.7),
    ),
    Measure(
        name="staggered-256",
        about="256 streams, a token every 50 ms, at 50 different instants",
        run=streams(256, gap_ms=50, phases=50),
        tells=_OF_STREAMS,
        cost_s=(2, 0.9),
    ),
    Measure(
        name="saturation",
        about="64 streams of 512 tokens, as fast as they can come",
        run=saturation,
        cost_s=(1, 0.7),
    ),
    Measure(
        name="short",
        about="replies of 8 tokens, not streamed, 32 at once, as fast as they can come",
        run=short,
        cost_s=(1, 0.6),
    ),
    Measure(
        name="dialects",
        about="32 streams in step, in each dialect",
        run=dialects,
        cost_s=(1.2, 0.8),
    ),
    Measure(
        name="hang-up",
        about=f"{HANG_UPS} clients that leave: queued, before the first token, in the stream",
        run=hang_up,
        once=True,
        cost_s=(0, 4),
    ),
)
