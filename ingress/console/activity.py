"""What a process remembers of its requests, for whoever watches it.

Those under way, and of those that are over how they ended. Told once when a request begins and once
when it ends; whatever changes between is looked up when somebody asks. It has bounds of its own,
and nothing of what is asked or answered.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from ingress.console.status import (
    MOST_REQUESTS,
    Errors,
    ErrorSeen,
    FirstToken,
    Held,
    Request,
    Tokens,
    Waiting,
)
from ingress.generation import Generation
from schemas.job import JobClass

RECENT_S: Final = 600.0
"""What is older is forgotten."""

_PART_S: Final = 10.0
_EXAMPLES: Final = 8
_FIRST_TOKENS: Final = 1000
_LIMITED: Final = (402, 429)


class Live:
    """A request under way.

    Args:
        account: Whose; None where there are no accounts.
        began_at: Unix seconds.
    """

    __slots__ = ("account", "began_at", "dialect", "generation", "stream")

    def __init__(
        self,
        generation: Generation,
        *,
        dialect: str,
        account: str | None,
        stream: bool,
        began_at: float,
    ) -> None:
        self.generation = generation
        self.dialect = dialect
        self.account = account
        self.stream = stream
        self.began_at = began_at


class _Count:
    """How often something happened in the last ten minutes."""

    __slots__ = ("_parts", "last")

    def __init__(self) -> None:
        self._parts: deque[tuple[int, int]] = deque()
        self.last: deque[ErrorSeen] = deque(maxlen=_EXAMPLES)

    def add(self, now: float) -> None:
        part = int(now // _PART_S)
        if self._parts and self._parts[-1][0] == part:
            self._parts[-1] = (part, self._parts[-1][1] + 1)
        else:
            self._parts.append((part, 1))
            self.total(now)

    def total(self, now: float) -> int:
        oldest = int((now - RECENT_S) // _PART_S)
        while self._parts and self._parts[0][0] <= oldest:
            self._parts.popleft()
        return sum(count for _, count in self._parts)


class _Queue(NamedTuple):
    model: str
    job_class: JobClass


class Activity:
    """The requests of one process.

    Args:
        clock: Gives Unix seconds.

    Attributes:
        failures: Errors since the process began, by dialect, code and status.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.failures: Counter[tuple[str, str, int]] = Counter()
        self._live: dict[Live, None] = {}  # the oldest first
        self._errors: dict[tuple[str, int], _Count] = {}
        self._refused: dict[str, _Count] = {}
        self._first_tokens: deque[FirstToken] = deque(maxlen=_FIRST_TOKENS)
        self._input: Counter[_Queue] = Counter()
        self._output: Counter[_Queue] = Counter()

    # --- What it is told --------------------------------------------------------------------------

    def begin(self, live: Live) -> None:
        """A request is under way."""
        self._live[live] = None

    def end(self, live: Live) -> None:
        """It is over, and its figures are final. Idempotent."""
        if live not in self._live:
            return
        del self._live[live]
        queue = _queue(live)
        usage = live.generation.usage
        self._input[queue] += usage.input_tokens
        self._output[queue] += usage.output_tokens
        if (first := _first_token(live)) is not None:
            self._first_tokens.append(first)

    @contextmanager
    def following(self, live: Live) -> Iterator[None]:
        """While this lasts a request is under way."""
        self.begin(live)
        try:
            yield
        finally:
            self.end(live)

    def failed(
        self,
        code: str,
        status: int,
        *,
        request_id: str,
        dialect: str,
        model: str | None = None,
        account: str | None = None,
    ) -> None:
        """A request was answered with an error, or its stream ended in one."""
        now = self._clock()
        self.failures[dialect, code, status] += 1
        errors = self._errors.setdefault((code, status), _Count())
        errors.add(now)
        errors.last.appendleft(
            ErrorSeen(at=now, request_id=request_id, dialect=dialect, model=model, account=account)
        )
        if status in _LIMITED and account is not None:
            self._refused.setdefault(account, _Count()).add(now)

    # --- What it knows ----------------------------------------------------------------------------

    def requests(self) -> tuple[tuple[Request, ...], int]:
        """Those under way, the oldest live ones first, and how many more there are."""
        under_way = [live for live in self._live if live.generation.phase != "ended"]
        under_way.sort(key=lambda live: live.generation.job.job_class == "batch")
        now = self._clock()
        shown = tuple(_request(live, now) for live in under_way[:MOST_REQUESTS])
        return shown, max(0, len(under_way) - MOST_REQUESTS)

    def waiting(self) -> tuple[Waiting, ...]:
        """What waits for a worker, by model and class; nothing of models that nothing waits for."""
        found: dict[_Queue, tuple[int, float]] = {}
        for live in self._live:
            if live.generation.phase == "queued":
                count, oldest_s = found.get(_queue(live), (0, 0.0))
                waits_s = live.generation.queued_for_s
                found[_queue(live)] = (count + 1, max(oldest_s, waits_s))
        return tuple(
            Waiting(model=queue.model, job_class=queue.job_class, count=count, oldest_s=oldest_s)
            for queue, (count, oldest_s) in found.items()
        )

    def held(self) -> tuple[Held, ...]:
        """What each worker has."""
        found: Counter[tuple[str, bool]] = Counter()
        for live in self._live:
            generation = live.generation
            if generation.worker is not None and generation.phase in ("prefill", "decode"):
                found[generation.worker, generation.job.job_class == "batch"] += 1
        return tuple(
            Held(worker=worker, live=found[worker, False], batch=found[worker, True])
            for worker in {worker: None for worker, _ in found}
        )

    def tokens(self) -> tuple[Tokens, ...]:
        """By model and class."""
        read, written = self._input.copy(), self._output.copy()
        for live in self._live:
            usage, queue = live.generation.usage, _queue(live)
            read[queue] += usage.input_tokens
            written[queue] += usage.output_tokens
        return tuple(
            Tokens(model=queue.model, job_class=queue.job_class, input=count, output=written[queue])
            for queue, count in read.items()
        )

    def first_tokens(self) -> tuple[FirstToken, ...]:
        """Those of the last ten minutes."""
        oldest = self._clock() - RECENT_S
        while self._first_tokens and self._first_tokens[0].at < oldest:
            self._first_tokens.popleft()
        under_way = (_first_token(live) for live in self._live)
        return (*self._first_tokens, *(first for first in under_way if first is not None))

    def errors(self) -> tuple[Errors, ...]:
        """Those of the last ten minutes."""
        now = self._clock()
        found = []
        for (code, status), errors in tuple(self._errors.items()):
            if not (count := errors.total(now)):
                del self._errors[code, status]
                continue
            found.append(Errors(code=code, status=status, count=count, last=tuple(errors.last)))
        return tuple(found)

    def refused(self) -> dict[str, int]:
        """How often each account was refused something in the last ten minutes, if it was."""
        now = self._clock()
        counts = {account: count.total(now) for account, count in self._refused.items()}
        for account, count in counts.items():
            if not count:
                del self._refused[account]
        return {account: count for account, count in counts.items() if count}


def _queue(live: Live) -> _Queue:
    job = live.generation.job
    return _Queue(job.model, job.job_class)


def _first_token(live: Live) -> FirstToken | None:
    job, ttft_s = live.generation.job, live.generation.ttft_s
    if ttft_s is None or job.job_class != "interactive":
        return None
    return FirstToken(job.request_id, live.began_at + ttft_s, ttft_s, job.model)


def _request(live: Live, now: float) -> Request:
    generation = live.generation
    job, usage = generation.job, generation.usage
    return Request(
        id=job.request_id,
        dialect=live.dialect,
        model=job.model,
        job_class=job.job_class,
        account=live.account,
        stream=live.stream,
        zdr=job.zdr,
        phase=generation.phase,
        age_s=max(0.0, now - live.began_at),
        waits_s=generation.queued_for_s if generation.phase == "queued" else None,
        ttft_s=generation.ttft_s,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        worker=generation.worker,
        attempt=generation.attempt,
    )
