"""What the way over the broker costs per token and per request, without a network and a broker.

    worker    engine ── Choice ── Run ── RabbitDelivery ── Outbox ── nothing
    ingress   recorded bytes ── FrameTap ── RabbitDispatcher ── ReplyBuffer ── listener
    memory    engine ── Run ── MemoryDelivery ── ReplyBuffer ── listener

Everything between the two ends is the real thing, in one process; what would be the socket counts
bytes and throws them away, or hands them over. So the figure is the CPU time of this program's own
code, and it means something on a busy machine too, if what is compared takes turns:

    python -m benchmarks.broker_path --against ../before      # another checkout; prints the ratio
    python -m benchmarks.broker_path --profile worker         # where the time goes

What the broker itself takes, and the system calls, are `benchmarks.peers`'s to tell.
"""

from __future__ import annotations

import asyncio
import cProfile
import os
import pstats
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias, cast

import click
import msgspec
import pamqp.frame
import psutil
import uvloop
from aio_pika.abc import AbstractIncomingMessage
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from schemas import telemetry
from schemas.delta import Completed, Delta, ReplyMessage, TextDelta
from schemas.job import ChatPrompt, Job
from schemas.message import Message, TextPart
from schemas.model_card import WorkerInfo
from schemas.sampling import OutputLimit, SamplingParams
from schemas.transport.base import Delivery, JobSource
from schemas.transport.memory import MemoryTransport
from schemas.transport.rabbit_connection import Session
from schemas.transport.rabbit_delivery import Outbox, RabbitDelivery
from schemas.transport.rabbit_dispatcher import DispatcherSettings, RabbitDispatcher, RabbitReply
from schemas.transport.rabbit_wire import FrameTap, Poster
from schemas.transport.reply_buffer import ReplyBuffer
from workers.compose import build_consumer, build_engine
from workers.consumer import Consumer
from workers.metrics import WorkerMetrics
from workers.settings import WorkerSettings

MODEL = "scripted"
_FRAME_MAX = 131_072
_READ_BYTES = 1 << 16
"""As much as a socket is read at once."""

_GAP_MS = 20

Figures: TypeAlias = dict[str, float]
Part: TypeAlias = Callable[[int, int, int, cProfile.Profile | None], Coroutine[Any, Any, Figures]]


def job_of(number: int, tokens: int) -> Job:
    """A chat whose answer has so many tokens, all streams in step."""
    said = TextPart(text=f"[[k={tokens} gap={_GAP_MS} ttft=0]]")
    now = time.time()
    return Job(
        job_id=f"{number:032x}",
        model=MODEL,
        prompt=ChatPrompt(messages=(Message(role="user", parts=(said,)),)),
        sampling=SamplingParams(limit=OutputLimit(max_tokens=1 << 16)),
        created_at=now,
        deadline=now + 3600,
        queue_deadline=now + 3600,
    )


class PlayedSession:
    """A connection to a broker that takes everything at once."""

    alive = True
    backlog = False

    def __init__(self) -> None:
        self.poster = Poster(3, _FRAME_MAX)
        self.bytes = 0
        self.writes = 0

    def write(self, messages: bytes) -> None:
        self.bytes += len(messages)
        self.writes += 1


class PlayedMessage:
    """A Job's message, as far as a delivery looks at it."""

    redelivered = False

    def __init__(self, reply_to: str) -> None:
        self.reply_to = reply_to

    async def ack(self) -> None:
        return


class PlayedSource:
    """Hands Jobs out when it is told to."""

    def __init__(self) -> None:
        self._came: asyncio.Queue[Delivery | None] = asyncio.Queue()

    def put(self, delivery: Delivery | None) -> None:
        self._came.put_nowait(delivery)

    async def deliveries(self) -> AsyncIterator[Delivery]:
        while (delivery := await self._came.get()) is not None:
            yield delivery

    def limit_batch(self, jobs: int) -> None:
        return

    async def announce(self, worker: WorkerInfo) -> None:
        return

    def connected(self) -> bool:
        return True

    def blocked(self) -> bool:
        return False

    @property
    def reconnects(self) -> int:
        return 0

    def dropped(self) -> Mapping[str, int]:
        return {}

    async def drain(self) -> None:
        self.put(None)

    async def close(self) -> None:
        return


def consumer_of(source: JobSource) -> Consumer:
    """A worker with the scripted engine."""
    settings = WorkerSettings(
        model=MODEL, served_id=MODEL, engine="scripted", concurrency=1024, heartbeat_s=3600
    )
    return build_consumer(
        settings, build_engine(settings), source, worker_id="w", metrics=WorkerMetrics()
    )


class Meter:
    """CPU time between two instants of a run; and a profile of it."""

    def __init__(self, profile: cProfile.Profile | None) -> None:
        self._profile = profile
        self.seconds = 0.0

    def __enter__(self) -> Meter:
        if self._profile:
            self._profile.enable()
        self._began = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.process_time() - self._began
        if self._profile:
            self._profile.disable()


async def worker_side(
    streams: int, tokens: int, queues: int, profile: cProfile.Profile | None
) -> Figures:
    """From the engine to the bytes for the socket; a request's beginning and end apart."""
    source, session = PlayedSource(), PlayedSession()
    outbox = Outbox(cast(Session, session))
    consumer = consumer_of(source)
    serving = asyncio.create_task(consumer.run())
    process = psutil.Process()
    left = 0
    over = asyncio.Event()

    def ended(_: RabbitDelivery) -> None:
        nonlocal left
        left -= 1
        if not left:
            over.set()

    async def set_aside(_: AbstractIncomingMessage, reason: str) -> None:
        raise AssertionError(reason)

    async def run(length: int) -> None:
        nonlocal left
        left = streams
        over.clear()
        for number in range(streams):
            message = cast(AbstractIncomingMessage, PlayedMessage(f"q{number % queues}"))
            source.put(
                RabbitDelivery(job_of(number, length), message, outbox, None, ended, set_aside)
            )
        await over.wait()

    await run(2)
    short, long = Meter(None), Meter(profile)
    with short:
        await run(2)
    before, writes, sent = process.memory_info().rss, session.writes, session.bytes
    with long:
        await run(tokens + 2)
    held = (process.memory_info().rss - before) / streams / 1024
    source.put(None)
    await serving
    each = streams * tokens
    return {
        "us_per_token": (long.seconds - short.seconds) / each * 1e6,
        "us_per_request": short.seconds / streams * 1e6,
        "bytes_per_token": (session.bytes - sent) / each,
        "writes_per_step": (session.writes - writes) / tokens,
        "kib_per_stream": held,
    }


def recorded(streams: int, tokens: int, queues: int) -> list[bytes]:
    """What the broker sends for each step of that many streams, a message per queue."""
    from schemas.codec import encode_frame

    steps = []
    for step in range(tokens):
        wire = []
        for queue in range(queues):
            messages = [
                ReplyMessage(
                    f"{number:032x}",
                    1,
                    step,
                    (TextDelta(0, f"tok{step} "),),
                    ((0, (7000 + step,)),),
                )
                for number in range(queue, streams, queues)
            ]
            body = encode_frame(messages)
            tag = f"headrace.reply.ingress.{queue:016x}"
            deliver = commands.Basic.Deliver(tag, step + 1, False, "", tag)
            properties = commands.Basic.Properties(delivery_mode=1)
            wire.append(pamqp.frame.marshal(deliver, 5))
            wire.append(pamqp.frame.marshal(ContentHeader(0, len(body), properties), 5))
            size = _FRAME_MAX - 8
            wire += [
                pamqp.frame.marshal(ContentBody(body[at : at + size]), 5)
                for at in range(0, len(body), size)
            ]
        steps.append(b"".join(wire))
    return steps


class Reader:
    """Who reads one reply: counts what comes, in the turn in which it comes."""

    def __init__(self, buffer: ReplyBuffer) -> None:
        self.buffer = buffer
        self.messages = 0
        buffer.listener = self._hear

    def _hear(self, _: ReplyMessage) -> bool:
        self.messages += 1
        return True

    async def wait(self) -> None:
        self.messages += len(await self.buffer.take())


async def ingress_side(
    streams: int, tokens: int, queues: int, profile: cProfile.Profile | None
) -> Figures:
    """From the bytes of the socket to the reader of each reply."""
    loop = asyncio.get_running_loop()
    dispatcher = RabbitDispatcher("amqp://localhost", DispatcherSettings(), "ingress", None)
    tap = FrameTap(loop)
    tap.watch_deliveries(5, dispatcher._on_frame)
    readers = []
    for number in range(streams):
        job = job_of(number, tokens)
        buffer = ReplyBuffer(1 << 20)
        dispatcher._replies[job.job_id] = RabbitReply(dispatcher, job, buffer)
        readers.append(Reader(buffer))
    waiting = [asyncio.create_task(reader.wait()) for reader in readers]
    await asyncio.sleep(0)
    steps = recorded(streams, tokens, queues)
    meter = Meter(profile)
    with meter:
        for step in steps:
            for at in range(0, len(step), _READ_BYTES):
                tap.feed_data(step[at : at + _READ_BYTES])
            await asyncio.sleep(0)
    assert all(reader.messages == tokens for reader in readers)
    for task in waiting:
        task.cancel()
    return {"us_per_token": meter.seconds / streams / tokens * 1e6}


async def memory_side(
    streams: int, tokens: int, queues: int, profile: cProfile.Profile | None
) -> Figures:
    """From the engine to the reader of each reply, all in one process."""
    del queues  # there are none
    transport = MemoryTransport()
    dispatcher = transport.dispatcher()
    source = transport.job_source(model=MODEL, slots=streams)
    serving = asyncio.create_task(consumer_of(source).run())
    await asyncio.sleep(0)

    async def read(number: int, length: int) -> None:
        reply = await dispatcher.dispatch(job_of(number, length))
        reply.listen(lambda message: message.seq > 1 and type(message.deltas[-1]) is TextDelta)
        last: Delta | None = None
        while type(last) is not Completed:
            last = (await reply.receive())[-1].deltas[-1]
        await reply.close()

    async def run(length: int) -> None:
        await asyncio.gather(*(read(number, length) for number in range(streams)))

    await run(2)
    short, long = Meter(None), Meter(profile)
    with short:
        await run(2)
    with long:
        await run(tokens + 2)
    await source.drain()
    await serving
    return {
        "us_per_token": (long.seconds - short.seconds) / streams / tokens * 1e6,
        "us_per_request": short.seconds / streams * 1e6,
    }


PARTS: dict[str, Part] = {"worker": worker_side, "ingress": ingress_side, "memory": memory_side}


async def _measured(parts: Sequence[str], streams: int, tokens: int, queues: int) -> Figures:
    return {
        f"{part}: {name}": value
        for part in parts
        for name, value in (await PARTS[part](streams, tokens, queues, None)).items()
    }


def _turn_of(tree: Path, arguments: Sequence[str]) -> Figures:
    """One measurement by the checkout at `tree`, by its own means, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.broker_path", "--json", *arguments],
        env={**os.environ, "PYTHONPATH": str(tree)},  # noqa: TID251 - handed on as it is
        cwd=tree,
        check=True,
        stdout=subprocess.PIPE,
    )
    found: Figures = msgspec.json.decode(done.stdout.splitlines()[-1])
    return found


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--part", "parts", multiple=True, type=click.Choice(list(PARTS)), help="Only this.")
@click.option("--streams", default=256, show_default=True, type=click.IntRange(min=1))
@click.option("--tokens", default=64, show_default=True, type=click.IntRange(min=1))
@click.option("--queues", default=1, show_default=True, help="How many reply queues they share.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--against", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Another checkout, which takes turns with this one.")  # fmt: skip
@click.option("--profile", "profiled", type=click.Choice(list(PARTS)),
              help="Show the dearest functions of a part instead.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One measurement, as a line of JSON.")
def main(
    parts: Sequence[str],
    streams: int,
    tokens: int,
    queues: int,
    rounds: int,
    against: Path | None,
    profiled: str | None,
    as_json: bool,
) -> None:
    """Measure the CPU time of the broker's path at both of its ends, and of the one in memory."""
    telemetry.configure_logging("error")
    if profiled:
        profile = cProfile.Profile(time.process_time)
        click.echo(uvloop.run(PARTS[profiled](streams, tokens, queues, profile)))
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
        return
    parts = parts or list(PARTS)
    if as_json:
        found = uvloop.run(_measured(parts, streams, tokens, queues))
        print(msgspec.json.encode(found).decode())
        return
    arguments = [f"--part={part}" for part in parts]
    arguments += [f"--streams={streams}", f"--tokens={tokens}", f"--queues={queues}"]
    trees = {"this": Path(__file__).resolve().parents[1]}
    if against:
        trees["against"] = against.resolve()
    turns: dict[str, list[Figures]] = {name: [] for name in trees}
    for _ in range(rounds):
        for name, tree in trees.items():
            turns[name].append(_turn_of(tree, arguments))
    for figure in turns["this"][0]:
        values = {name: median(turn[figure] for turn in found) for name, found in turns.items()}
        line = "  ".join(f"{name} {value:9.1f}" for name, value in values.items())
        if against and values["against"]:
            line += f"  ratio {values['this'] / values['against']:.2f}"
        click.echo(f"{figure:24} {line}")


if __name__ == "__main__":
    main()
