"""The lines of one batch, several at a time: read ahead only as far as the window allows.

A line whose model nobody serves is passed over, and the input is read again for it when somebody
does; so it holds up no line of another model, and no place in a window. What is in memory are the
lines in flight, and the numbers of all that need not run any more.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from ingress.batch.capacity import Capacity
from ingress.batch.commits import Commits
from ingress.batch.endings import cancelled, closing
from ingress.batch.inputs import read_lines
from ingress.batch.line_run import LineRunner, Request
from ingress.batch.lines import parse_line
from ingress.batch.patience import persistently
from ingress.batch.window import Place, Window
from ingress.stores.base import BatchStore
from schemas.batch import Batch, LineError, LineResult
from schemas.blobs.base import BlobMissing, BlobStore
from schemas.errors import ModelNotFound
from schemas.model_card import ModelCard

log = structlog.get_logger(__name__)


class LineRuns:
    """Runs the lines that have no result yet, and has their results stored.

    Args:
        look_s: How often it is looked whether an absent model is back.
    """

    def __init__(
        self,
        batch: Batch,
        runner: LineRunner,
        *,
        store: BatchStore,
        blobs: BlobStore,
        commits: Commits,
        capacity: Capacity,
        window: Window,
        look_s: float,
    ) -> None:
        self._batch = batch
        self._runner = runner
        self._store = store
        self._blobs = blobs
        self._commits = commits
        self._capacity = capacity
        self._window = window
        self._look_s = look_s
        self._begun: set[int] = set()
        self._running: set[asyncio.Task[None]] = set()
        self._crash: BaseException | None = None
        self._stopping = asyncio.Event()
        self._aborting = asyncio.Event()

    def stop(self) -> None:
        """Begin no further line."""
        self._stopping.set()

    def abort(self) -> None:
        """The same, and give up those that run. What they have finished by now is kept."""
        self._stopping.set()
        self._aborting.set()

    async def run(self) -> bool:
        """Run them; returns whether no line is left, not having been stopped.

        Raises:
            LeaseLost: The batch is somebody else's.
        """
        committing = asyncio.create_task(self._commits.run())
        beginning = asyncio.create_task(self._begin_all())
        stopping = asyncio.create_task(self._stopping.wait())
        aborting = asyncio.create_task(self._aborting.wait())
        waits: list[asyncio.Task[Any]] = [stopping, aborting]
        try:
            await _first_of(beginning, stopping, committing)
            complete = beginning.done()
            if complete:
                beginning.result()
            await cancelled(beginning)
            while self._running and not aborting.done():
                await _first_of(*self._running, aborting, committing)
            complete = complete and not self._running
            await cancelled(*self._running)
            waits.append(flushing := asyncio.create_task(self._commits.flush()))
            await _first_of(flushing, committing)
            if self._crash is not None:
                raise self._crash
            return complete
        finally:
            await cancelled(beginning, committing, *waits, *self._running)

    async def _begin_all(self) -> None:
        """Begin every line that has no result."""
        self._begun = await persistently(self._committed, what="read what was stored")
        try:
            while absent := await self._begin_those_served():
                while not any(map(self._is_served, absent)):  # noqa: ASYNC110 - workers come
                    await asyncio.sleep(self._look_s)
        except BlobMissing:
            log.error("batch.input_missing", batch_id=self._batch.batch_id)

    async def _committed(self) -> set[int]:
        return {line async for line in self._store.committed(self._batch.batch_id)}

    async def _begin_those_served(self) -> set[str]:
        """Read the input once and begin what can run; returns the models of what cannot."""
        absent: set[str] = set()
        async with closing(read_lines(self._blobs, self._batch.input_blob)) as lines:
            async for number, text in lines:
                if number in self._begun:
                    continue
                if (model := await self._begin_if_served(number, text)) is not None:
                    absent.add(model)
        return absent

    async def _begin_if_served(self, number: int, text: bytes | None) -> str | None:
        """Begin a line, or have its result; returns the model that is needed if it is absent."""
        batch = self._batch
        line = parse_line(number, text, shape=batch.shape, endpoint=batch.endpoint)
        if isinstance(line, LineError):
            log.error("batch.line_unreadable", batch_id=batch.batch_id, line=number)
            return None
        request = self._runner.understand(line)
        del line
        if isinstance(request, LineResult):
            await self._keep(request)
            return None
        try:
            place = await self._place(request, len(text or b""))
        except ModelNotFound as error:
            await self._keep(self._runner.refuse(request, error))
            return None
        if place is None:
            return request.model
        self._begin(request, *place)
        return None

    async def _keep(self, result: LineResult) -> None:
        """Have the result of a line that is not executed."""
        self._begun.add(result.line)
        self._commits.add(result)
        await self._commits.room()
        await asyncio.sleep(0)  # others have a turn, however many lines are refused

    async def _place(self, request: Request, size: int) -> tuple[ModelCard, Place] | None:
        """A model's card and a place in its window; None if nobody serves it now.

        Raises:
            ModelNotFound: There is no such model.
        """
        while True:
            card = self._served(request.model)
            if card is not None:
                place = await self._window.enter(card.id, size)
                if place is not None:
                    return card, place
            if self._batch.model is None:
                return None
            # All lines are for the same model: none could overtake this one.
            await asyncio.sleep(self._look_s)

    def _served(self, name: str) -> ModelCard | None:
        batch = self._batch
        # The model of an OpenAI batch was there when the batch was validated.
        exists = batch.shape == "openai" or name == batch.model
        return self._capacity.serving(name, exists=exists)

    def _is_served(self, name: str) -> bool:
        try:
            return self._served(name) is not None
        except ModelNotFound:
            return True  # its lines can be told so

    def _begin(self, request: Request, card: ModelCard, place: Place) -> None:
        self._begun.add(request.line)
        task = asyncio.create_task(self._run(request, card, place))
        self._running.add(task)
        task.add_done_callback(self._has_run)

    def _has_run(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (crash := task.exception()) is not None:
            # A line without a result must not pass for one that was too late.
            self._crash = crash
            self.abort()

    async def _run(self, request: Request, card: ModelCard, place: Place) -> None:
        try:
            self._commits.add(await self._runner.run(request, card))
            await self._commits.room()
        finally:
            place.leave()


async def _first_of(*tasks: asyncio.Task[Any]) -> None:
    """Wait for the first; the last of them ends only by failing, and its error is raised."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    if tasks[-1].done():
        tasks[-1].result()
