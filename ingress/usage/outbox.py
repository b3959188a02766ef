"""Records on their way out: in groups, as often as it takes, in bounded memory.

It stands between requests and whatever keeps their records. That may be away for minutes: nothing
is lost as long as there is room. A record for which there is none, or that is still here when the
process must end, is written whole into the log, so that even then it can be found.

Must not know where they go.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, TypeAlias

import structlog

from ingress.batch.endings import cancelled
from ingress.batch.patience import Pauses
from ingress.usage.lines import line_of
from ingress.usage.metrics import Place, UsageMetrics
from schemas.errors import ServiceError
from schemas.usage_record import UsageRecord

log = structlog.get_logger(__name__)

Send: TypeAlias = Callable[[Sequence[UsageRecord]], Awaitable[object]]
"""Returns when a group is safe. Raises `ServiceError` or `OSError` if it may be sent again."""

MOST: Final = 50_000
"""Records that may wait, each of about a kilobyte of memory."""

_GROUP: Final = 500
_LINGER_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0
_CLOSE_S: Final = 5.0


class Outbox:
    """A `Recorder` that sends groups of records.

    Args:
        send: Takes a group. It is called with the same one until it has taken it.
        to: What that is, for metrics and the log.
        most: Records that may wait.
        linger_s: How long a first record waits for others.
        close_s: How long closing may take.
    """

    def __init__(
        self,
        send: Send,
        *,
        to: Place,
        metrics: UsageMetrics,
        most: int = MOST,
        linger_s: float = _LINGER_S,
        close_s: float = _CLOSE_S,
    ) -> None:
        self._send = send
        self._to = to
        self._metrics = metrics
        self._most = most
        self._linger_s = linger_s
        self._close_s = close_s
        self._waiting: deque[UsageRecord] = deque()
        self._some = asyncio.Event()
        self._hurry = asyncio.Event()
        self._sending = asyncio.create_task(self._run())

    def record(self, record: UsageRecord) -> None:
        if len(self._waiting) >= self._most or self._sending.done():
            self._drop(record)
            return
        self._waiting.append(record)
        self._some.set()
        self._show()

    async def close(self) -> None:
        """Send what is left, as far as that is possible soon. Idempotent."""
        self._hurry.set()
        self._some.set()
        await asyncio.wait({self._sending}, timeout=self._close_s)
        await cancelled(self._sending)
        while self._waiting:
            self._drop(self._waiting.popleft())
        self._show()

    async def _run(self) -> None:
        while self._waiting or not self._hurry.is_set():
            await self._some.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._linger_s):
                    await self._hurry.wait()
            while self._waiting:
                await self._send_group()
            if not self._hurry.is_set():
                self._some.clear()

    async def _send_group(self) -> None:
        group = tuple(islice(self._waiting, _GROUP))
        if await self._sent(group):
            self._metrics.records.labels(self._to, "sent").inc(len(group))
        else:
            for record in group:
                self._drop(record)
        for _ in group:
            self._waiting.popleft()
        self._show()

    async def _sent(self, group: Sequence[UsageRecord]) -> bool:
        """Whether a group is safe; it cannot be if the fault is ours."""
        pauses = Pauses(longest_s=_LONGEST_PAUSE_S)
        failed = False
        while True:
            try:
                await self._send(group)
            except (ServiceError, OSError) as error:
                if not failed:
                    diagnostic = getattr(error, "diagnostic", None)
                    log.warning("usage.not_sent", to=self._to, reason=diagnostic or str(error))
                failed = True
            except Exception as error:
                log.error("usage.crashed", to=self._to, error=type(error).__name__, exc_info=error)
                return False
            else:
                if failed:
                    log.info("usage.sent_again", to=self._to, waiting=len(self._waiting))
                return True
            await pauses.pause()

    def _drop(self, record: UsageRecord) -> None:
        self._metrics.records.labels(self._to, "dropped").inc()
        log.error("usage.dropped", to=self._to, **line_of(record))

    def _show(self) -> None:
        self._metrics.waiting.labels(self._to).set(len(self._waiting))
