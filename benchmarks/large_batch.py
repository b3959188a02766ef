"""One batch as large as they may be: how long each step takes, and the memory of every process.

Everything runs as an operator starts it, each part a process of its own: RabbitMQ, PostgreSQL, a
directory for blobs, ingress, batcher and a worker with the scripted engine. The client is
`headrace batch`, and its memory is measured like that of the others.

    upload     the file, by `headrace batch submit`, and the creation of the batch
    validate   until the batch is `in_progress`
    run        until every line has a result
    finalise   until the files are there
    download   them, by `headrace batch results`

Peak memory is the kernel's own high-water mark of resident memory (`VmHWM`), children included;
a command of Python that has done nothing is at about 40 MB.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import httpx
import orjson
import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.load import BadReply
from benchmarks.processes import broker, running
from tests.fixtures.ports import free_port
from tests.fixtures.postgres import PostgresServer

MODEL = "scripted"
_LIMIT_MB = 300
_START_TIMEOUT_S = 120.0
_POLL_S = 0.2

console = Console(width=None if sys.stdout.isatty() else 100)


class Peaks:
    """Watches how much memory processes have had at most, while it is entered.

    Attributes:
        bytes_of: Peak by name; of several processes of a name the largest.
    """

    def __init__(self) -> None:
        self.bytes_of: dict[str, int] = {}
        self._watched: list[tuple[str, psutil.Process]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peaks")

    def add(self, name: str, process: psutil.Process) -> None:
        self._watched.append((name, process))

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            self.look()

    def look(self) -> None:
        for name, process in tuple(self._watched):
            with suppress(psutil.NoSuchProcess):
                for one in (process, *process.children(recursive=True)):
                    peak = max(_high_water(one.pid), self.bytes_of.get(name, 0))
                    self.bytes_of[name] = peak


def _high_water(pid: int) -> int:
    """In bytes; 0 of a process that has just ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


class Service:
    """The processes, up."""

    def __init__(self, url: str, peaks: Peaks, http: httpx.Client) -> None:
        self.url = url
        self.peaks = peaks
        self.http = http

    def command(self, *args: str, good: tuple[int, ...] = (0,)) -> str:
        """What `headrace batch ARGS` prints.

        Raises:
            BadReply: It ends with another status.
        """
        process = subprocess.Popen(
            [sys.executable, "-m", "ingress", "batch", *args, "--url", self.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.peaks.add("headrace batch", psutil.Process(process.pid))
        out, err = process.communicate()
        if process.returncode not in good:
            raise BadReply(err.decode(errors="replace"))
        return out.decode()

    def batch(self, batch_id: str) -> dict[str, Any]:
        path = "messages/batches" if batch_id.startswith("msg") else "batches"
        answer = self.http.get(f"{self.url}/v1/{path}/{batch_id}")
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found


@contextmanager
def service(directory: Path, slots: int) -> Iterator[Service]:
    """All processes, ready for a batch."""
    with ExitStack() as stack:
        url, _ = stack.enter_context(broker(None))
        postgres = PostgresServer()
        stack.callback(postgres.remove)
        postgres.start()
        database = postgres.new_database()
        upgrade = [sys.executable, "-m", "ingress", "database", "upgrade", "--database", database]
        subprocess.run(upgrade, check=True, capture_output=True)
        port = free_port()
        blobs = ("--blobs", str(directory / "blobs"))
        stores = (*blobs, "--database", database)
        parts = {
            "ingress": ("ingress", "--port", str(port), *stores, "--model", MODEL),
            "batcher": ("batcher", *stores),
            "worker": ("worker", "--engine", "scripted", "--model", MODEL, *blobs),
        }
        parts["worker"] += ("--concurrency", str(slots))
        peaks = stack.enter_context(Peaks())
        for name, arguments in parts.items():
            more = ("--amqp-url", url, "--log-level", "warning")
            peaks.add(name, stack.enter_context(running(name, "ingress", *arguments, *more)))
        http = stack.enter_context(httpx.Client(timeout=30))
        up = Service(f"http://127.0.0.1:{port}", peaks, http)
        _wait_until_ready(up)
        # A batcher that has just come waits until it knows all models; that is no step of a batch.
        write_input(directory / "first.jsonl", 1, 1000, "chat")
        up.command("submit", str(directory / "first.jsonl"), "--endpoint", "chat", "--watch")
        yield up


def _wait_until_ready(up: Service) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        with suppress(httpx.HTTPError):
            if up.http.get(f"{up.url}/health/ready").status_code == 200:
                return
        time.sleep(0.1)
    raise BadReply("the service does not become ready")


def write_input(path: Path, lines: int, size: int, dialect: str) -> None:
    """A file of so many lines and about so many bytes."""
    filler = "All work and no play makes a long line. "
    with path.open("wb") as file:
        for number in range(lines):
            line = _line(number, "", dialect)
            left = size // lines - len(line) - 1
            text = (filler * (left // len(filler) + 1))[: max(left, 0)]
            file.write(_line(number, text, dialect) + b"\n")


def _line(number: int, filler: str, dialect: str) -> bytes:
    content = f"[[say:answer {number}]]{filler}"
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
    if dialect == "messages":
        return orjson.dumps({"custom_id": f"r-{number}", "params": {**body, "max_tokens": 99}})
    url = "/v1/chat/completions"
    return orjson.dumps({"custom_id": f"r-{number}", "method": "POST", "url": url, "body": body})


def measure(up: Service, directory: Path, lines: int, dialect: str) -> dict[str, float]:
    """Seconds of every step.

    Raises:
        BadReply: A line is missing, is there twice or has another line's answer.
    """
    ends = [time.monotonic()]
    endpoint = ("--endpoint", dialect)
    batch_id = up.command("submit", str(directory / "input.jsonl"), *endpoint).strip()
    ends.append(time.monotonic())
    steps = ["in_progress"]
    if dialect != "messages":
        steps = ["validating", *steps, "finalizing"]
    with _progress() as progress:
        bar = progress.add_task("lines", total=lines)
        for step in steps:
            while _status(batch := up.batch(batch_id)) == step:
                counts = batch["request_counts"]
                progress.update(bar, completed=counts.get("completed", 0))
                time.sleep(_POLL_S)
            ends.append(time.monotonic())
    if _status(batch) not in ("completed", "ended"):
        raise BadReply(f"the batch is {_status(batch)}")
    up.command("results", batch_id, "-o", str(directory / "results.jsonl"))
    ends.append(time.monotonic())
    up.peaks.look()
    check(directory / "results.jsonl", lines, dialect)
    names = {"validating": "validate", "in_progress": "run", "finalizing": "finalise"}
    took = [end - begin for begin, end in pairwise(ends)]
    return dict(zip(["upload", *map(names.__getitem__, steps), "download"], took, strict=True))


def _status(batch: dict[str, Any]) -> str:
    status: str = batch["status" if "status" in batch else "processing_status"]
    return status


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=console, transient=True)


def check(path: Path, lines: int, dialect: str) -> None:
    """See that every line is answered once, with its own answer.

    Raises:
        BadReply: It is not so.
    """
    seen: set[int] = set()
    with path.open("rb") as file:
        for text in file:
            line = orjson.loads(text)
            number = int(line["custom_id"].removeprefix("r-"))
            if dialect == "messages":
                answer = line["result"]["message"]["content"][0]["text"]
            else:
                answer = line["response"]["body"]["choices"][0]["message"]["content"]
            if number in seen or answer != f"answer {number}":
                raise BadReply(f"line {number} is there twice or has a wrong answer")
            seen.add(number)
    if seen != set(range(lines)):
        raise BadReply(f"{lines - len(seen)} lines have no answer")


def show(seconds: dict[str, float], peaks: Peaks, lines: int, size: int) -> bool:
    """Print what was measured; returns whether every process kept within its memory."""
    steps = Table(title=f"{lines:,} lines, {size / 1e6:.0f} MB")
    for column in ("step", "seconds", "lines/s", "MB/s"):
        steps.add_column(column, justify="left" if column == "step" else "right")
    for name, took in seconds.items():
        steps.add_row(name, f"{took:.1f}", f"{lines / took:,.0f}", f"{size / 1e6 / took:.1f}")
    console.print(steps)
    memory = Table(title=f"peak memory (limit {_LIMIT_MB} MB)")
    memory.add_column("process")
    memory.add_column("MB", justify="right")
    for name, peak in peaks.bytes_of.items():
        memory.add_row(name, f"{peak / 1e6:.0f}")
    console.print(memory)
    return all(peak < _LIMIT_MB * 1e6 for peak in peaks.bytes_of.values())


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--lines", default=50_000, show_default=True, type=click.IntRange(min=1))
@click.option("--bytes", "size", default=200_000_000, show_default=True, type=click.IntRange(min=1),
              help="Of the whole input.")  # fmt: skip
@click.option("--endpoint", "dialect", default="chat", show_default=True,
              type=click.Choice(("chat", "messages")))  # fmt: skip
@click.option("--slots", default=64, show_default=True, type=click.IntRange(min=1),
              help="Of the worker.")  # fmt: skip
def main(lines: int, size: int, dialect: str, slots: int) -> None:
    """Submit, validate, run and download one large batch, and watch everybody's memory.

    Needs `rabbitmq-server` and PostgreSQL on this machine and the `test` extra.
    """
    directory = Path(tempfile.mkdtemp(prefix="headrace-large-batch-"))
    try:
        write_input(directory / "input.jsonl", lines, size, dialect)
        with service(directory, slots) as up:
            seconds = measure(up, directory, lines, dialect)
            within = show(seconds, up.peaks, lines, size)
    except BadReply as error:
        raise click.ClickException(f"nothing is reported: {error}") from None
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if not within:
        raise click.ClickException(f"a process had more than {_LIMIT_MB} MB")


if __name__ == "__main__":
    main()
