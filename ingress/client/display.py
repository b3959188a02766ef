"""How a batch is shown on a terminal: a line that grows, and figures beside it.

Everything here goes to stderr; what scripts read is on stdout, and not made here. Where stderr is
no terminal, what changes is told in lines.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from ingress.client.view import BatchView
from schemas.batch import LineError

_RATE_OVER_S: Final = 60.0
_TOLD_EVERY_S: Final = 30.0
_MOST_ERRORS: Final = 20
_LIST_WIDTH: Final = 120


class Rate:
    """How fast a count grows, over the last minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def see(self, now: float, count: int) -> None:
        """The count at a time, in seconds."""
        self._seen.append((now, count))
        while len(self._seen) > 2 and self._seen[1][0] < now - _RATE_OVER_S:
            self._seen.popleft()

    def per_s(self) -> float:
        """0 as long as nothing is known."""
        if not self._seen:
            return 0.0
        (first_at, first), (last_at, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else 0.0

    def left_s(self, count: int) -> float | None:
        """How long it takes to grow by `count`; None if that cannot be told."""
        rate = self.per_s()
        return count / rate if rate > 0 else None


class BatchDisplay:
    """Shows one batch again and again.

    Args:
        console: Where.
        clock: Seconds that only grow.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._rate = Rate()
        self._told: tuple[str, float] | None = None
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.fields[status]}"),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task = self._progress.add_task("", status="", figures="", total=None)

    def show(self, batch: BatchView) -> None:
        """As it is now."""
        now = self._clock()
        if batch.status == "in_progress" and batch.shape == "openai":
            self._rate.see(now, batch.done)
        figures = self._figures(batch)
        self._progress.update(
            self._task,
            status=batch.status,
            figures=figures,
            # Message batches tell nothing before the end; a bar that stands still would lie.
            total=batch.total if batch.done else None,
            completed=batch.done,
        )
        if not self._console.is_terminal:
            status, at = self._told or ("", 0.0)
            if status != batch.status or now >= at + _TOLD_EVERY_S:
                self._told = (batch.status, now)
                say(self._console, f"{batch.batch_id} {batch.status} {figures}".rstrip())

    def note(self, text: str) -> None:
        """Something that passes."""
        self._progress.update(self._task, figures=text)
        if not self._console.is_terminal:
            say(self._console, text)

    def __enter__(self) -> BatchDisplay:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _figures(self, batch: BatchView) -> str:
        if not batch.total:
            return ""
        if batch.shape == "messages" and not batch.ended:
            return f"{batch.total} requests"
        parts = [f"{batch.done}/{batch.total}"]
        if batch.errored:
            parts.append(f"{batch.errored} failed")
        if batch.status == "in_progress":
            if rate := self._rate.per_s():
                parts.append(f"{rate:.1f}/s" if rate < 100 else f"{rate:.0f}/s")
            left_s = self._rate.left_s(batch.total - batch.done)
            if left_s is not None and batch.done < batch.total:
                parts.append(f"{duration(left_s)} left")
        if batch.tokens is not None:
            parts.append(f"{batch.tokens[0]} + {batch.tokens[1]} tokens")
        return ", ".join(parts)


@contextmanager
def transfer(console: Console, what: str, size: int | None) -> Iterator[Callable[[int], None]]:
    """Show an upload or a download while the block runs; it tells how many bytes it has come to."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    with progress:
        task = progress.add_task(what, total=size)
        yield lambda done: progress.update(task, completed=done)


def print_outcome(console: Console, batch: BatchView) -> None:
    """Say where a batch stands, or how it ended."""
    say(console, f"{batch.batch_id} {_outcome(batch)}")
    print_errors(console, batch.errors)


def print_errors(console: Console, errors: tuple[LineError, ...], file: Path | None = None) -> None:
    """Say what is wrong with an input; like a compiler, if it is a file of this machine."""
    for error in errors[:_MOST_ERRORS]:
        where = []
        if file is not None:
            where.append(str(file) if error.line is None else f"{file}:{error.line}")
        elif error.line is not None:
            where.append(f"line {error.line}")
        say(console, ": ".join([*where, error.code, error.message]))
    if len(errors) > _MOST_ERRORS:
        say(console, f"and {len(errors) - _MOST_ERRORS} more")


def print_list(console: Console, batches: list[BatchView]) -> None:
    """A table of batches."""
    table = Table(box=None, pad_edge=False)
    for title in ("id", "status", "endpoint", "created"):
        table.add_column(title, no_wrap=True)
    for title in ("succeeded", "failed", "total"):
        table.add_column(title, justify="right")
    for batch in batches:
        table.add_row(
            batch.batch_id,
            batch.status,
            batch.endpoint,
            f"{datetime.fromtimestamp(batch.created_at, UTC):%Y-%m-%d %H:%M}Z",
            str(batch.succeeded),
            str(batch.errored + batch.unexecuted),
            str(batch.total),
        )
    # A narrow terminal may wrap it; but an id that is cut short is worth nothing.
    console.width = max(console.width, _LIST_WIDTH)
    console.print(table)


def say(console: Console, text: str) -> None:
    """A line as it is: nothing in it is markup, and nothing is wrapped."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """Such as 40 s, 12 min or 3 h 20 min."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{round(seconds)} s"
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def _outcome(batch: BatchView) -> str:
    if not batch.ended:
        done = f"{batch.done} of {batch.total} requests done" if batch.done else ""
        return f"{batch.status}: {done}" if done else batch.status
    counts = [f"{batch.succeeded} of {batch.total} requests succeeded"]
    if batch.errored:
        counts.append(f"{batch.errored} failed")
    if batch.unexecuted:
        counts.append(f"{batch.unexecuted} not executed")
    if batch.tokens is not None:
        counts.append(f"{batch.tokens[0]} input and {batch.tokens[1]} output tokens")
    return f"{batch.status}: {', '.join(counts)}" if batch.total else batch.status
