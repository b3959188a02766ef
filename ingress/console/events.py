"""The stream of moments that a console follows: one a second, made once for all who watch.

Nothing is looked up while nobody watches. Who is slow misses moments, and no moment waits for them:
each says all there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import structlog
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ingress.console.history import History
from ingress.console.observer import Observer
from ingress.console.snapshot import Moment, past, snapshot
from ingress.console.status import (
    PodStatus,
    Process,
    UnknownStatus,
    decode_status,
    encode_status,
)
from ingress.disconnect import until_gone
from ingress.services import Services
from ingress.stores.base import StoreUnavailable
from schemas.batch import Batch

log = structlog.get_logger(__name__)

_BATCHES_EVERY: Final = 2
"""Moments; the store is asked for them only so often."""

_MOST_BATCHES: Final = 50
_ENDED_FOR_S: Final = 600.0
_WRITE_S: Final = 20.0


class Watch:
    """Makes the moments while somebody watches.

    Attributes:
        every_s: How often.
        linger_s: For so long moments are still made when the last watcher has left: most come back.
    """

    def __init__(self, services: Services, observer: Observer) -> None:
        self.every_s = 1.0
        self.linger_s = 30.0
        self._services = services
        self._observer = observer
        self._history = History()
        self._batches = _Batches(services)
        self._watchers = 0
        self._left_at = 0.0
        self._making: asyncio.Task[None] | None = None
        self._moment = asyncio.Event()  # set and replaced with each moment
        self._latest = b""

    @property
    def idle(self) -> bool:
        """Whether nothing is looked up."""
        return self._making is None

    async def opening(self) -> bytes:
        """What a new watcher is sent first: the past, and the present."""
        if self._making is None:
            self._making = asyncio.create_task(self._make_regularly())
        if not self._latest:
            await self._moment.wait()
        return _event("past", past(self._history)) + self._latest

    async def following(self) -> bytes:
        """The next moment."""
        await self._moment.wait()
        return self._latest

    def enter(self) -> None:
        """Somebody watches."""
        self._watchers += 1

    def leave(self) -> None:
        """Somebody does not any more."""
        self._watchers -= 1
        self._left_at = asyncio.get_running_loop().time()

    async def close(self) -> None:
        """Look up nothing any more."""
        if self._making is not None:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)
        await self._batches.close()

    def _wanted(self) -> bool:
        since_s = asyncio.get_running_loop().time() - self._left_at
        return self._watchers > 0 or since_s < self.linger_s

    async def _make_regularly(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._wanted():
                next_at = loop.time() + self.every_s
                if (pods := self._services.pods) is not None:
                    pods.ask()
                self._batches.look(self.every_s * _BATCHES_EVERY)
                try:
                    self._make()
                except Exception as error:  # the next moment may be better, and is waited for
                    log.error("console.crashed", error=type(error).__name__, exc_info=error)
                await asyncio.sleep(max(0.0, next_at - loop.time()))
        finally:
            self._making, self._latest = None, b""

    def _make(self) -> None:
        services, now = self._services, time.time()
        statuses = (self._observer.status(), *self._others())
        workers = services.dispatcher.workers()
        sample = self._history.move(now, statuses, workers)
        settings = services.settings
        configured = [model.id for model in settings.config.models]
        moment = Moment(
            at=now,
            statuses=statuses,
            workers=workers,
            cards=services.catalog.models(),
            known=[*configured, *([settings.model] if settings.model else [])],
            batches=self._batches.known if services.store is not None else None,
            batches_away=self._batches.away,
            sample=sample,
            gone=tuple(self._history.gone),
            keys_needed=services.authenticator.required,
        )
        self._latest = _event("moment", snapshot(moment, self._history))
        self._moment.set()
        self._moment = asyncio.Event()

    def _others(self) -> Sequence[PodStatus]:
        found = []
        if self._services.pods is not None:
            for body in self._services.pods.heard().values():
                # One of another release may tell what nobody here understands.
                with contextlib.suppress(UnknownStatus):
                    found.append(decode_status(body))
        return sorted(found, key=lambda status: (status.process, status.pod))


@asynccontextmanager
async def watching(services: Services, process: Process) -> AsyncIterator[None]:
    """While this lasts the process can be watched, and tells other pods how it stands."""
    observer = Observer(services, process)
    if services.pods is not None:
        services.pods.answer_with(lambda: encode_status(observer.status()))
    services.watch = Watch(services, observer)
    try:
        yield
    finally:
        await services.watch.close()


class _Batches:
    """The unfinished batches of all accounts, and those seen to end lately.

    Attributes:
        away: The store could not be reached.
    """

    def __init__(self, services: Services) -> None:
        self._store = services.store
        self._unfinished: dict[str, Batch] = {}
        self._ended: dict[str, tuple[Batch, float]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = float("-inf")
        self.away = False

    @property
    def known(self) -> Sequence[Batch]:
        """The newest first."""
        batches = [*self._unfinished.values(), *(batch for batch, _ in self._ended.values())]
        return sorted(batches, key=lambda batch: batch.created_at, reverse=True)

    def look(self, every_s: float) -> None:
        """Look again beside everything else, if it is time."""
        now = asyncio.get_running_loop().time()
        due = now - self._looked_at >= every_s
        if self._store is not None and due and (self._looking is None or self._looking.done()):
            self._looked_at = now
            self._looking = asyncio.create_task(self._look(now))

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look(self, now: float) -> None:
        assert self._store is not None
        try:
            found = await self._store.unfinished_batches(_MOST_BATCHES)
            unfinished = {batch.batch_id: batch for batch in found}
            for batch_id in self._unfinished.keys() - unfinished.keys():
                before = self._unfinished[batch_id]
                ended = await self._store.batch(before.account, batch_id)
                if ended is not None:
                    self._ended[batch_id] = (ended, now)
        except StoreUnavailable as error:
            if not self.away:
                log.warning("console.no_batches", diagnostic=error.diagnostic)
            self.away = True
            return
        self.away = False
        self._unfinished = unfinished
        self._ended = {
            batch_id: ended
            for batch_id, ended in self._ended.items()
            if ended[1] > now - _ENDED_FOR_S and batch_id not in unfinished
        }


class Events(Response):
    """The response that goes on as long as somebody watches."""

    def __init__(self, watch: Watch, services: Services, headers: Sequence[tuple[bytes, bytes]]):
        self.background = None
        self._watch = watch
        self._services = services
        self._fields = [(b"content-type", b"text/event-stream; charset=utf-8"), *headers]
        self._over = asyncio.Event()

    def refuse(self) -> None:
        """The process takes no more work, and does not wait for who only looks on."""
        self._over.set()

    def shut_down(self) -> None:
        """The process ends."""
        self._over.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            await send(self._head())
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        self._services.answers.add(self)
        self._watch.enter()
        carrying = asyncio.create_task(self._carry(send))
        leaving = asyncio.create_task(until_gone(receive))
        ending = asyncio.create_task(self._over.wait())
        tasks = (carrying, leaving, ending)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._watch.leave()
            self._services.answers.discard(self)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if ending.done() and not ending.cancelled():
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _head(self) -> Message:
        return {"type": "http.response.start", "status": 200, "headers": self._fields}

    async def _carry(self, send: Send) -> None:
        opening = b"retry: 1000\n\n" + await self._watch.opening()
        await send(self._head())
        await self._write(send, opening)
        while True:
            await self._write(send, await self._watch.following())

    async def _write(self, send: Send, body: bytes) -> None:
        async with asyncio.timeout(_WRITE_S):
            await send({"type": "http.response.body", "body": body, "more_body": True})


def _event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
