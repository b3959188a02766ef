"""Requests with an `Idempotency-Key`: the same one is run once, however often it is sent.

While it runs, whoever sends it again joins it, on the same process from the first byte, and what is
left of it goes on while any of them is there, and for a moment after the last has left: a client
whose connection broke is about to come back. On another process it waits for the answer where
answers are kept, and is asked to come back where they are not. When it has ended the same answer is
given again: for a moment by the process that made it, and for the window by all where answers are
kept. Without one, and after a failure, the request is run again.

The store of keys must not be in the way of answers: where it cannot be reached, a key holds within
its process only.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import structlog
from starlette.requests import Request
from starlette.types import Scope

from ingress.answer import Answer
from ingress.disconnect import while_connected
from ingress.idempotency.kept import KeptAnswers
from ingress.idempotency.key import HEADER, KeyedRequest, reused
from ingress.idempotency.patience import PatientStore
from ingress.idempotency.recording import Recording, Room
from ingress.idempotency.repeated import Asker, Repeated, Role
from ingress.idempotency.settings import IdempotencySettings
from ingress.idempotency.store import Earlier, IdempotencyStore, KeyConflict
from ingress.metrics import IngressMetrics
from ingress.stores.base import StoreUnavailable
from schemas.blobs.base import BlobStoreUnavailable
from schemas.errors import (
    ClientClosedRequest,
    IdempotentRequestRunning,
    ServerShuttingDown,
)

if TYPE_CHECKING:
    from ingress.services import UnderWay

log = structlog.get_logger()

_AT_ONCE: Final = 100
_LAST_WORDS_S: Final = 5.0


class _Run:
    """One request that is run here.

    Attributes:
        first: The id of the request that runs it.
        owner: Its name in the store.
        settled: It has an answer on its way, or was refused.
        gone: It does not have the key any more.
        answer: What runs; None before that.
        recording: Of the answer.
        recorded: The store knows that it runs here.
        failed: It has ended, and not well.
        alone: When it ends because nobody waits for it.
    """

    def __init__(self, request: KeyedRequest, first: str) -> None:
        self.request = request
        self.first = first
        self.owner = secrets.token_hex(16)
        self.settled = asyncio.Event()
        self.gone = asyncio.Event()
        self.answer: Answer | None = None
        self.recording: Recording | None = None
        self.recorded = False
        self.failed = False
        self.alone: asyncio.TimerHandle | None = None

    @property
    def over(self) -> bool:
        """Whether it is about to give the key back: it was refused, fails or was given up."""
        if self.answer is None or self.recording is None:
            return True
        return self.failed or self.answer.error is not None or self.recording.given_up


class KeyedRequests:
    """Those of one process.

    Args:
        store: Where all processes of a deployment tell one another who runs what.
        answers: Where answers are kept, or were; None for nowhere.
        write_s: How long a client may take nothing.
        wait_s: How long one may wait for an answer that is made elsewhere.
        under_way: What a process that ends waits for.
    """

    def __init__(
        self,
        settings: IdempotencySettings,
        store: IdempotencyStore,
        answers: KeptAnswers | None,
        *,
        write_s: float,
        wait_s: float,
        metrics: IngressMetrics,
        under_way: set[UnderWay],
    ) -> None:
        self._under_way = under_way
        self._settings = settings
        self._store = PatientStore(store, patience_s=settings.store_s)
        self._answers = answers
        self._keeps = settings.keep_answers and answers is not None
        self._write_s = write_s
        self._wait_s = wait_s
        self._metrics = metrics
        self._room = Room(settings.held_bytes)
        self._runs: dict[tuple[str, bytes], _Run] = {}
        self._driving: set[asyncio.Task[None]] = set()

    @property
    def held(self) -> int:
        """How many requests run here, or can still be joined."""
        return len(self._runs)

    @property
    def running(self) -> int:
        """How many answers are being made, or written down."""
        return len(self._driving)

    async def once(
        self,
        request: Request,
        keyed: KeyedRequest,
        asker: Asker,
        start: Callable[[], Awaitable[Answer]],
    ) -> Repeated:
        """The answer to a request: the one that `start` begins, or an earlier one.

        Raises:
            IdempotencyKeyReused: The key belongs to another request.
            IdempotentRequestRunning: It runs, and this client cannot have its answer.
            ServingError: What `start` raises.
        """
        place = (keyed.account, keyed.key)
        while (other := self._runs.get(place)) is not None:
            if other.request.digest != keyed.digest:
                raise reused()
            await while_connected(request.receive, other.settled.wait())
            if not other.over:
                return self._joined(other, asker)
            await while_connected(request.receive, other.gone.wait())
        run = self._runs[place] = _Run(keyed, asker.request_id)
        try:
            earlier = await self._earlier(request, run)
            if earlier is not None:
                return self._response(*earlier, asker, "replayed")
            recording = self._begin(run, await start(), request)
        except BaseException:
            await self._give_back(run)
            raise
        finally:
            if run.recording is None:
                self._forget(run)
            run.settled.set()
        return self._response(recording, run.first, asker, "first")

    def _joined(self, run: _Run, asker: Asker) -> Repeated:
        """The response to a client whose request is being run, or was a moment ago.

        Raises:
            IdempotentRequestRunning: The beginning of its answer is not there any more.
        """
        assert run.recording is not None
        if not run.recording.whole:
            raise _running()
        if run.alone is not None:
            run.alone.cancel()
        role: Role = "replayed" if run.recording.ended else "joined"
        return self._response(run.recording, run.first, asker, role)

    def _response(self, recording: Recording, first: str, asker: Asker, role: Role) -> Repeated:
        return Repeated(
            recording.follow(),
            asker,
            role,
            first=first,
            write_s=self._write_s,
            metrics=self._metrics,
            under_way=self._under_way,
        )

    # --- Before it runs ---------------------------------------------------------------------------

    async def _earlier(self, request: Request, run: _Run) -> tuple[Recording, str] | None:
        """The kept answer of a request and the id of that; None if this one is to be run.

        Raises:
            IdempotencyKeyReused: The key belongs to another request.
            IdempotentRequestRunning: It runs elsewhere, and its answer cannot be waited for.
        """
        loop = asyncio.get_running_loop()
        gives_up_at = loop.time() + self._wait_s
        pause_s = self._settings.look_s
        lease_s = self._settings.lease_s
        while True:
            try:
                earlier = await self._store.claim(run.request, run.owner, lease_s=lease_s)
            except KeyConflict:
                raise reused() from None
            except StoreUnavailable:
                return None
            if earlier is None:
                run.recorded = True
                return None
            if earlier.kept:
                if answer := self._answers and await self._answers.read(earlier.key):
                    return answer
                await self._forget_lost(earlier)
            elif not self._keeps or loop.time() > gives_up_at:
                raise _running()
            else:
                await while_connected(request.receive, asyncio.sleep(pause_s))
                pause_s = min(2 * pause_s, 1.0)

    async def _forget_lost(self, earlier: Earlier) -> None:
        """Run a request again whose answer cannot be read."""
        log.warning("idempotency.answer_lost", account=earlier.account)
        with contextlib.suppress(StoreUnavailable):
            await self._store.forget(earlier)

    # --- While it runs ----------------------------------------------------------------------------

    def _begin(self, run: _Run, answer: Answer, request: Request) -> Recording:
        recording = Recording(self._room, max_bytes=self._settings.answer_bytes)
        recording.on_alone = lambda: self._left_alone(run)
        run.answer, run.recording = answer, recording
        driving = asyncio.create_task(self._drive(run, recording, answer, request.scope))
        self._driving.add(driving)
        driving.add_done_callback(self._driving.discard)
        return recording

    def _left_alone(self, run: _Run) -> None:
        """Nobody waits for it. Who was cut off is given a moment to come back."""
        assert run.recording is not None
        loop = asyncio.get_running_loop()
        run.alone = loop.call_later(self._settings.linger_s, run.recording.give_up)

    async def _drive(self, run: _Run, recording: Recording, answer: Answer, scope: Scope) -> None:
        """Have the answer made, whoever is there, and say what came of it."""
        try:
            await answer(scope, recording.receive, recording.send)
            recording.break_off(ClientClosedRequest("The request was given up."))
        except asyncio.CancelledError:
            recording.break_off(ServerShuttingDown("The server is shutting down; try again."))
            raise
        except Exception as error:
            recording.break_off(error)
        finally:
            run.failed = answer.error is not None or not recording.ended
        if run.failed:
            await self._give_back(run)
        elif run.recorded:
            await self._end(run, recording)
        if run.failed or not recording.whole:
            self._forget(run)
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(self._settings.linger_s, self._forget, run)

    async def _end(self, run: _Run, recording: Recording) -> None:
        """It went well."""
        keyed = run.request
        kept = False
        if self._keeps and recording.whole:
            assert self._answers is not None
            try:
                await self._answers.keep(keyed, recording, run.first)
                kept = True
            except BlobStoreUnavailable as error:
                log.warning("idempotency.answer_not_kept", reason=str(error))
        window_s = self._settings.window_s
        try:
            mine = await self._store.end(keyed, run.owner, window_s=window_s, kept=kept)
        except StoreUnavailable:
            return  # the record runs out, and what is kept is deleted with it
        run.recorded = False
        if kept and not mine:
            assert self._answers is not None
            with contextlib.suppress(BlobStoreUnavailable):
                await self._answers.delete(keyed.key)

    async def _give_back(self, run: _Run) -> None:
        """It did not go well: the key is free."""
        if run.recorded:
            run.recorded = False
            with contextlib.suppress(StoreUnavailable):  # the record runs out
                await self._store.release(run.request, run.owner)

    def _forget(self, run: _Run) -> None:
        """Let whoever comes next have the key."""
        place = (run.request.account, run.request.key)
        if self._runs.get(place) is run:
            del self._runs[place]
        if run.recording is not None:
            run.recording.close()
        run.gone.set()

    # --- Beside requests --------------------------------------------------------------------------

    @asynccontextmanager
    async def upkeep(self) -> AsyncIterator[None]:
        """While the block runs, keep what is ours and delete what is over; then end all."""
        keeping = asyncio.create_task(self._keep_up())
        try:
            yield
        finally:
            keeping.cancel()
            if self._driving:
                await asyncio.wait(self._driving, timeout=_LAST_WORDS_S)
            for driving in (tasks := tuple(self._driving)):
                driving.cancel()
            await asyncio.gather(keeping, *tasks, return_exceptions=True)
            for run in tuple(self._runs.values()):
                await self._give_back(run)
            await self._store.close()

    async def _keep_up(self) -> None:
        loop = asyncio.get_running_loop()
        settings = self._settings
        sweeps_at = loop.time() + settings.sweep_s * random.random()
        while True:
            await asyncio.sleep(min(settings.lease_s / 3, settings.sweep_s))
            try:
                owners = [run.owner for run in self._runs.values() if run.recorded]
                if owners:
                    await self._store.renew(owners, lease_s=settings.lease_s)
                if loop.time() >= sweeps_at:
                    sweeps_at = loop.time() + settings.sweep_s * random.uniform(0.8, 1.2)
                    await self.sweep()
            except (StoreUnavailable, BlobStoreUnavailable) as error:
                log.warning("idempotency.not_kept_up", reason=str(error))
            except Exception as error:  # a fault of ours must not end all that follows
                log.error("idempotency.crashed", error=type(error).__name__, exc_info=error)

    async def sweep(self) -> None:
        """Delete what is over: answers first, so that none is left without a record.

        Raises:
            StoreUnavailable, BlobStoreUnavailable: Some may be left.
        """
        while earlier := await self._store.expired(_AT_ONCE):
            for one in earlier:
                if self._answers is not None:
                    await self._answers.delete(one.key)
                await self._store.forget(one)


def _running() -> IdempotentRequestRunning:
    return IdempotentRequestRunning(
        f"The first request with this `{HEADER}` is still running; try again when it has ended.",
        param=HEADER,
    )
