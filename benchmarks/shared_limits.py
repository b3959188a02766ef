"""Whether three ingress processes together hold the limits of one account, to the letter.

One run: a broker, a PostgreSQL, a worker, a batcher that writes the records of usage, and three
ingresses. Two hundred clients ask any of them, again and again, for streams and whole answers, some
leave in the middle of one and some ask for a failure. Then the account has every request in flight
that it may have, all by one ingress, which is killed.

It fails if more requests were made in any 60 seconds than the limit says, by more than one percent;
if fewer than 99 % of those were in the first 60; if what was spent differs from what the records
say; if their number differs from that of the answers; or if what the killed ingress held is not
free again.
"""

from __future__ import annotations

import asyncio
import random
import re
import tempfile
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import click
import msgspec
import psutil
import uvloop
from rich.table import Table

from benchmarks.accounts import database
from benchmarks.processes import MODEL, Target, broker, console, running, wait_until_answering
from ingress.limits.state import AccountState
from tests.fixtures.ports import free_port

KEY = "benchmark-key-of-an-account-with-limits"
REQUESTS = 600
CONCURRENCY = 40
CONFIG = f"""
models:
  - id: {MODEL}
    context_length: 8192
    pricing: {{input_cents_per_million: 1, output_cents_per_million: 1}}
accounts:
  - id: limited
    keys: [{{key: {KEY}}}]
    limits:
      concurrency: {CONCURRENCY}
      requests_per_minute: {REQUESTS}
      tokens_per_minute: 60000
      budget: {{cents: 100, period: total}}
"""
_PAUSE_S = (1.0, 2.0)
"""Of a client that was refused."""


def _wire(text: str, *, stream: bool, max_tokens: int = 16) -> bytes:
    messages = [{"role": "user", "content": text}]
    asked = {"model": MODEL, "stream": stream, "max_tokens": max_tokens, "messages": messages}
    body = msgspec.json.encode(asked)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


KINDS = {
    "stream": _wire("[[k=8 gap=10 ttft=0]]", stream=True),
    "whole": _wire("[[k=8 gap=10 ttft=0]]", stream=False),
    "left": _wire("[[k=40 gap=20 ttft=0]]", stream=True, max_tokens=64),
    "failed": _wire("[[fail:start]]", stream=False),
}
HANGS = _wire("[[hang:0]]", stream=False)


@dataclass
class Seen:
    """What clients have seen: when requests were let in, and all statuses by kind."""

    let_in: list[float] = field(default_factory=list)
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)


async def ask(port: int, kind: str, seen: Seen) -> int:
    """One request, and the status of its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with closing(writer):
        writer.write(KINDS[kind])
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split()[1])
        seen.statuses[kind, status] += 1
        if status != 429:
            seen.let_in.append(time.time())
        if kind == "left" and status == 200:
            await reader.read(100)
        elif b"chunked" in head:
            await reader.readuntil(b"0\r\n\r\n")
        else:
            length = re.search(rb"content-length: (\d+)", head)
            assert length is not None
            await reader.readexactly(int(length[1]))
    return status


async def client(ports: Sequence[int], until: float, seen: Seen) -> None:
    """Ask for this and that, of any ingress."""
    await asyncio.sleep(random.random())
    while time.time() < until:
        kind = random.choices(list(KINDS), [4, 3, 2, 1])[0]
        if await ask(random.choice(ports), kind, seen) == 429:
            await asyncio.sleep(random.uniform(*_PAUSE_S))


def most_in_a_minute(began: Sequence[float], answered: Sequence[float]) -> int:
    """So many requests at least were let in in the fullest 60 seconds.

    Each was let in at some moment between its beginning and its answer; so what was answered before
    the end, and had not begun before the beginning, was let in in between. Both are in order.
    """
    return max(bisect_left(answered, at + 60) - number for number, at in enumerate(began))


async def state_of(tables: asyncpg.Connection[Any]) -> AccountState:
    """As the ledger has it."""
    row = await tables.fetchval("SELECT state FROM account_states")
    return AccountState() if row is None else msgspec.msgpack.decode(row, type=AccountState)


async def load(ports: Sequence[int], url: str, clients: int, seconds: float) -> list[str]:
    """All clients at once; what was wrong."""
    seen = Seen()
    until = time.time() + seconds
    await asyncio.gather(*(client(ports, until, seen) for _ in range(clients)))
    await asyncio.sleep(3)  # records come by way of the broker
    tables = await asyncpg.connect(url)
    records = await tables.fetch("SELECT began_at, outcome, microcents FROM usage_records")
    state = await state_of(tables)
    await tables.close()
    began = sorted(record["began_at"] for record in records)
    most = most_in_a_minute(began, sorted(seen.let_in))
    first = bisect_left(began, began[0] + 60)
    spent = state.spending["total"].microcents
    said = sum(record["microcents"] for record in records)
    table = Table(title=f"{clients} clients of {len(ports)} ingresses", show_header=False)
    for name, value in (
        ("refused", sum(n for (_, status), n in seen.statuses.items() if status == 429)),
        ("let in", len(seen.let_in)),
        ("records", f"{len(records)}: {dict(Counter(record['outcome'] for record in records))}"),
        ("in the first 60 s", f"{first} of {REQUESTS}"),
        ("most in any 60 s", f"{most} of {REQUESTS}"),
        ("spent, by records", f"{spent}, {said} microcents"),
    ):
        table.add_row(name, str(value))
    console.print(table)
    wrong = {
        "more than the limit": most > REQUESTS * 1.01,
        "less than the limit allows": first < REQUESTS * 0.99,
        "not one record for each": len(records) != len(seen.let_in),
        "not spent what the records say": spent != said,
        "something is still held": any(
            lease.hold.in_flight or lease.pocket for lease in state.leases.values()
        ),
    }
    return [text for text, is_so in wrong.items() if is_so]


async def kill(ports: Sequence[int], url: str, killed: psutil.Process) -> list[str]:
    """Whether what the first one holds, and all there is, is free again when it is killed."""
    tables = await asyncpg.connect(url)
    await tables.execute("DELETE FROM account_states")
    held = [await asyncio.open_connection("127.0.0.1", ports[0]) for _ in range(CONCURRENCY)]
    for _, writer in held:
        writer.write(HANGS)
    async with asyncio.timeout(30):
        while True:
            state = await state_of(tables)
            if sum(lease.hold.in_flight for lease in state.leases.values()) == CONCURRENCY:
                break
            await asyncio.sleep(0.2)
    await tables.close()
    await _until(ports[1], refused=True)
    at = time.monotonic()
    killed.kill()
    try:
        await _until(ports[1], refused=False)
    except TimeoutError:
        return ["what a killed ingress held is not free again"]
    finally:
        for _, writer in held:
            writer.close()
    console.print(f"what the killed one held was free after {time.monotonic() - at:.1f} s")
    return []


async def _until(port: int, *, refused: bool) -> None:
    """Ask until it is so."""
    async with asyncio.timeout(30):
        while True:
            if (await ask(port, "whole", Seen()) == 429) == refused:
                return
            await asyncio.sleep(0.2)


@contextmanager
def deployment() -> Iterator[tuple[list[int], str, list[psutil.Process]]]:
    """The ports and processes of the ingresses, and the database."""
    with ExitStack() as stack:
        amqp, _ = stack.enter_context(broker(None))
        tables = stack.enter_context(database())
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (place / "headrace.yaml").write_text(CONFIG)
        shared = ("--amqp-url", amqp, "--database", tables, "--blobs", str(place / "blobs"))
        stack.enter_context(
            running(
                "worker",
                *("ingress", "worker", "--engine", "scripted", "--model", MODEL),
                *("--amqp-url", amqp, "--concurrency", "512", "--no-supervise"),
            )
        )
        stack.enter_context(running("batcher", "ingress", "batcher", *shared))
        ports, processes = [free_port() for _ in range(3)], []
        for port in ports:
            config = ("--config", str(place / "headrace.yaml"))
            command = ("ingress", "ingress", "--port", str(port), *shared, *config)
            processes.append(stack.enter_context(running(f"ingress-{port}", *command)))
        for port, process in zip(ports, processes, strict=True):
            target = Target("ingress", port, (("ingress", process),))
            uvloop.run(wait_until_answering(target, KEY))
        uvloop.run(_begin(tables))
        yield ports, tables, processes


async def _begin(url: str) -> None:
    """Forget the requests by which it was found out that all are up."""
    await asyncio.sleep(3)
    tables = await asyncpg.connect(url)
    await tables.execute("DELETE FROM usage_records; DELETE FROM account_states")
    await tables.close()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--clients", default=200, show_default=True, type=click.IntRange(min=1))
@click.option("--seconds", default=130.0, show_default=True, type=click.FloatRange(min=70),
              help="How long they ask.")  # fmt: skip
def main(clients: int, seconds: float) -> None:
    """Check that processes share limits exactly.

    Needs `rabbitmq-server` and PostgreSQL on this machine, and the `test` extra.
    """
    with ExitStack() as stack:
        with console.status("starting broker, database, worker, batcher and three ingresses"):
            ports, tables, processes = stack.enter_context(deployment())
        wrong = uvloop.run(load(ports, tables, clients, seconds))
        wrong += uvloop.run(kill(ports, tables, processes[0]))
    if wrong:
        raise click.ClickException("; ".join(wrong))


if __name__ == "__main__":
    main()
