"""What an ingress itself costs per token and per request, without sockets, broker and worker.

    reply messages, decoded ── Generation ── encoder ── Answer ── app ── connection ── nothing

Everything between the two ends is the real thing, in this one process; the transport at the end
counts bytes and throws them away. So the figure is the CPU time of this program's own code, and it
means something on a busy machine too, if what is compared takes turns:

    python -m benchmarks.ingress_path --against ../before     # another checkout; prints the ratio
    python -m benchmarks.ingress_path --profile               # where the time goes
"""

from __future__ import annotations

import asyncio
import cProfile
import os
import pstats
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click
import orjson
import psutil
import uvicorn
import uvloop

from ingress.app import build_app, build_services
from ingress.connection import HttpConnection
from ingress.settings import IngressSettings, TimeLimits
from schemas import telemetry
from schemas.delta import (
    Accepted,
    Completed,
    Delta,
    Finished,
    FinishReason,
    ReplyMessage,
    Started,
    TextDelta,
    Usage,
)
from schemas.job import Job
from schemas.model_card import Capabilities, ModelCard, WorkerInfo
from schemas.transport.reply_buffer import ReplyBuffer

MODEL = "scripted"
KEY = "a-key-of-the-benchmark"
_BYTES = 96
"""About what a message of one token takes on the wire."""

_PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
}


class PlayedReply:
    """A reply whose messages the benchmark puts in, as a dispatcher does."""

    def __init__(self, job: Job) -> None:
        self.job_id = job.job_id
        self.buffer = ReplyBuffer(1 << 20)

    async def receive(self) -> Sequence[ReplyMessage]:
        return await self.buffer.take()

    def listen(self, listener: Callable[[ReplyMessage], bool]) -> None:
        self.buffer.listener = listener

    def say(self, seq: int, *deltas: Delta, ids: Sequence[int] = ()) -> None:
        token_ids = ((0, tuple(ids)),) if ids else ()
        self.buffer.put(ReplyMessage(self.job_id, 1, seq, deltas, token_ids), _BYTES)

    def interrupt(self, reason: str) -> None:
        raise AssertionError(f"a reply was given up: {reason}")

    def probe(self) -> None:
        return

    async def redispatch(self, job: Job) -> None:
        raise AssertionError("a reply was lost")

    async def cancel(self) -> None:
        return

    async def close(self) -> None:
        return


class PlayedDispatcher:
    """Takes every Job and leaves its reply to the benchmark."""

    def __init__(self) -> None:
        card = ModelCard(
            id=MODEL, context_length=1 << 20, capabilities=Capabilities(completions=True)
        )
        self.replies: list[PlayedReply] = []
        self._workers = [WorkerInfo(worker_id="w", card=card, engine="played", slots=1 << 20)]

    async def dispatch(self, job: Job) -> PlayedReply:
        self.replies.append(PlayedReply(job))
        return self.replies[-1]

    def workers(self) -> Sequence[WorkerInfo]:
        return self._workers

    def connected(self) -> bool:
        return True

    def blocked(self) -> bool:
        return False

    @property
    def reconnects(self) -> int:
        return 0

    def dropped(self) -> Mapping[str, int]:
        return {}

    async def close(self) -> None:
        return


class Sink(asyncio.Transport):
    """The client's side: takes everything at once and keeps nothing but the count."""

    writes = 0

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        del name
        return default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        Sink.writes += 1
        self.bytes += len(data)

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class Ingress:
    """The app, and as many connections to it as are wanted."""

    def __init__(self, dialect: str) -> None:
        self.dispatcher = PlayedDispatcher()
        settings = IngressSettings(
            model=MODEL,
            api_keys=(KEY,),
            max_concurrent=1 << 20,
            max_queued=1 << 20,
            # A worker that is played says nothing while the machine is busy with something else.
            limits=TimeLimits(silence_s=3600, stall_s=3600),
        )
        self.services = build_services(settings, self.dispatcher)
        self._config = uvicorn.Config(
            build_app(self.services),
            http=HttpConnection,
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
        )
        self._config.load()
        self._state = uvicorn.server.ServerState()
        self._state.default_headers = self._config.encoded_headers
        self._dialect = dialect

    def connect(self) -> HttpConnection:
        connection = HttpConnection(self._config, self._state, {})
        connection.connection_made(Sink())
        return connection

    def request(self, *, stream: bool) -> bytes:
        """As the official clients send it."""
        body: dict[str, Any] = {"model": MODEL, "stream": stream, "max_tokens": 4096}
        match self._dialect:
            case "completions":
                body["prompt"] = [1, 2, 3]
            case "responses":
                del body["max_tokens"]
                body["input"] = "Say something."
            case _:
                body["messages"] = [{"role": "user", "content": "Say something."}]
        content = orjson.dumps(body)
        return (
            b"POST %b HTTP/1.1\r\nhost: localhost:8000\r\naccept: application/json\r\n"
            b"accept-encoding: gzip, deflate\r\nuser-agent: OpenAI/Python 2.0.0\r\n"
            b"authorization: Bearer %b\r\nx-stainless-lang: python\r\nx-stainless-arch: x64\r\n"
            b"x-stainless-retry-count: 0\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b"
            % (_PATHS[self._dialect].encode(), KEY.encode(), len(content), content)
        )


async def _turns_until(reached: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if reached():
            return
        await asyncio.sleep(0)
    raise AssertionError("the ingress stands still")


def _written(writes: int) -> Callable[[], bool]:
    return lambda: Sink.writes >= writes


async def opened(ingress: Ingress, streams: int) -> list[PlayedReply]:
    """As many streams, each after its first token."""
    request, replies = ingress.request(stream=True), ingress.dispatcher.replies
    for number in range(streams):
        ingress.connect().data_received(request)
        if number % 64 == 63:
            await asyncio.sleep(0)
    await _turns_until(lambda: len(replies) == streams)
    for reply in replies:
        reply.say(0, Accepted("w", 9), Started("w", 9, 0))
        reply.say(1, TextDelta(0, "tok0 "), ids=(7,))
    wanted = Sink.writes + 2 * streams  # head and first records
    await _turns_until(lambda: Sink.writes >= wanted)
    return replies


async def tokens_in_step(
    dialect: str, streams: int, steps: int, profile: cProfile.Profile | None
) -> dict[str, float]:
    """Per token, per stream and per step in CPU time; and memory."""
    ingress, process = Ingress(dialect), psutil.Process()
    for reply in await opened(ingress, 32):
        _end(reply, 2)
    await _turns_until(lambda: not ingress.services.answers)
    ingress.dispatcher.replies.clear()
    before, began = process.memory_info().rss, time.process_time()
    replies = await opened(ingress, streams)
    opening = time.process_time() - began
    held = (process.memory_info().rss - before) / streams / 1024
    messages = [
        [
            ReplyMessage(reply.job_id, 1, 2 + step, (TextDelta(0, f"tok{step} "),), ((0, (7,)),))
            for reply in replies
        ]
        for step in range(steps)
    ]
    longest = 0.0
    if profile:
        profile.enable()
    began = time.process_time()
    for step in messages:
        step_began = time.process_time()
        wanted = Sink.writes + streams
        for reply, message in zip(replies, step, strict=True):
            reply.buffer.put(message, _BYTES)
        await _turns_until(_written(wanted))
        longest = max(longest, time.process_time() - step_began)
    spent = time.process_time() - began
    if profile:
        profile.disable()
    began = time.process_time()
    for reply in replies:
        _end(reply, 2 + steps)
    await _turns_until(lambda: not ingress.services.answers)
    ending = time.process_time() - began
    return {
        "us_per_token": spent / streams / steps * 1e6,
        "us_per_stream": (opening + ending) / streams * 1e6,
        "longest_step_ms": longest * 1000,
        "kib_per_stream": held,
    }


def _end(reply: PlayedReply, seq: int) -> None:
    reply.say(seq, Finished(0, FinishReason.STOP), Completed(Usage(9, 0, seq)))


async def short_requests(
    dialect: str, count: int, profile: cProfile.Profile | None
) -> dict[str, float]:
    """CPU microseconds per request whose answer is one short body."""
    ingress = Ingress(dialect)
    request, replies = ingress.request(stream=False), ingress.dispatcher.replies
    connections = [ingress.connect() for _ in range(32)]

    async def round_() -> None:
        replies.clear()
        for connection in connections:
            connection.data_received(request)
        await _turns_until(lambda: len(replies) == len(connections))
        for reply in replies:
            reply.say(0, Accepted("w", 9), Started("w", 9, 0))
            reply.say(1, TextDelta(0, "Something."), ids=(7,))
            _end(reply, 2)
        await _turns_until(lambda: not ingress.services.answers)
        await _turns_until(
            lambda: all(connection.cycle.response_complete for connection in connections)
        )

    await round_()
    rounds = count // len(connections)
    if profile:
        profile.enable()
    began = time.process_time()
    for _ in range(rounds):
        await round_()
    spent = time.process_time() - began
    if profile:
        profile.disable()
    return {"us_per_request": spent / rounds / len(connections) * 1e6}


async def _measured(dialect: str, streams: int, steps: int, requests: int) -> dict[str, float]:
    found = await tokens_in_step(dialect, streams, steps, None)
    if requests:
        found |= await short_requests(dialect, requests, None)
    return found


def _turn_of(tree: Path, arguments: Sequence[str]) -> dict[str, float]:
    """One measurement by the checkout at `tree`, in a process of its own."""
    script = Path(__file__).resolve()
    done = subprocess.run(
        [sys.executable, str(script), "--json", *arguments],
        env={**os.environ, "PYTHONPATH": str(tree)},  # noqa: TID251 - handed on as it is
        cwd=tree,
        check=True,
        capture_output=True,
    )
    found: dict[str, float] = orjson.loads(done.stdout.splitlines()[-1])
    return found


def _profiled(
    what: str, run: Callable[[cProfile.Profile], Coroutine[Any, Any, dict[str, float]]]
) -> None:
    """Print the dearest functions of a run."""
    profile = cProfile.Profile(time.process_time)
    click.echo(f"{what}: {uvloop.run(run(profile))}")
    pstats.Stats(profile).sort_stats("tottime").print_stats(45)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--dialect", type=click.Choice(sorted(_PATHS)), default="chat", show_default=True)
@click.option("--streams", default=256, show_default=True, type=click.IntRange(min=1))
@click.option("--steps", default=64, show_default=True, type=click.IntRange(min=1))
@click.option("--requests", default=512, show_default=True, help="Short ones; 0 leaves them out.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--against", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Another checkout, which takes turns with this one.")  # fmt: skip
@click.option("--profile", is_flag=True, help="Show the dearest functions instead.")
@click.option("--json", "as_json", is_flag=True, help="One measurement, as a line of JSON.")
def main(
    dialect: str,
    streams: int,
    steps: int,
    requests: int,
    rounds: int,
    against: Path | None,
    profile: bool,
    as_json: bool,
) -> None:
    """Measure the CPU time of an ingress's own code, per token and per request."""
    if profile or as_json:
        telemetry.configure_logging("error")
    if profile:
        _profiled("tokens", lambda to: tokens_in_step(dialect, streams, steps, to))
        _profiled("requests", lambda to: short_requests(dialect, requests or 512, to))
        return
    if as_json:
        found = uvloop.run(_measured(dialect, streams, steps, requests))
        print(orjson.dumps(found).decode())
        return
    arguments = (
        *("--dialect", dialect, "--streams", str(streams)),
        *("--steps", str(steps), "--requests", str(requests)),
    )
    here = Path(__file__).resolve().parents[1]
    trees = {"this": here} | ({"against": against.resolve()} if against else {})
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for _ in range(rounds):
        for name, tree in trees.items():
            turns[name].append(_turn_of(tree, arguments))
    for figure in turns["this"][0]:
        values = {name: median(turn[figure] for turn in found) for name, found in turns.items()}
        line = "  ".join(f"{name} {value:9.1f}" for name, value in values.items())
        if against:
            line += f"  ratio {values['this'] / values['against']:.2f}"
        click.echo(f"{figure:16} {line}")


if __name__ == "__main__":
    main()
