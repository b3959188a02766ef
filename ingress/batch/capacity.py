"""What lines can count on: whether a model exists, whether anybody serves it, for how many.

A batch outlives workers: a model that nobody serves at the moment is waited for, and a name is
taken for unknown only by who has heard everybody. So what a batcher believes differs from what an
ingress tells a live request, which wants an answer now.
"""

from __future__ import annotations

import asyncio

from ingress.batch.settings import BatcherSettings
from ingress.catalog import Catalog
from schemas.errors import ModelNotFound, ModelUnavailable
from schemas.model_card import ModelCard
from schemas.transport.base import Dispatcher

_AHEAD = 2
"""Lines of a model in flight for each slot of its workers: one that runs, one that follows it."""

_LEAST_AHEAD = 8


class Capacity:
    """Judges by catalog and dispatcher. `look` is called regularly."""

    def __init__(self, catalog: Catalog, dispatcher: Dispatcher, settings: BatcherSettings) -> None:
        self._catalog = catalog
        self._dispatcher = dispatcher
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._connected_since: float | None = None
        self._seen: set[str] = set()
        self.look()

    def look(self) -> None:
        """Take note of who is there."""
        if not self._dispatcher.connected():
            self._connected_since = None
            return
        if self._connected_since is None:
            self._connected_since = self._loop.time()
        for card in self._catalog.models():
            self._seen.update(name.casefold() for name in (card.id, *card.aliases))

    def heard_all(self) -> bool:
        """Whether every worker has had the time to tell of itself."""
        since = self._connected_since
        return since is not None and self._loop.time() >= since + self._settings.presence_s

    def exists(self, name: str) -> bool:
        """Whether there is, or was, or may yet be, a model of this name."""
        try:
            self._catalog.lookup(name)
        except ModelUnavailable:
            return True
        except ModelNotFound:
            return name.casefold() in self._seen or not self.heard_all()
        return True

    def serving(self, name: str, *, exists: bool) -> ModelCard | None:
        """The card of a model to which a line can be sent now; None where one has to wait.

        Args:
            name: The model's, as the line has it.
            exists: It is known that there is such a model, although nobody may serve it now.

        Raises:
            ModelNotFound: There is none.
        """
        try:
            card = self._catalog.lookup(name)
        except ModelUnavailable:
            return None
        except ModelNotFound:
            if exists or self.exists(name):
                return None
            raise
        return card if self.open(card) else None

    def open(self, card: ModelCard) -> bool:
        """Whether lines can be sent to the workers of a model now."""
        dispatcher = self._dispatcher
        return dispatcher.connected() and not dispatcher.blocked() and self._catalog.available(card)

    def limit(self, model: str) -> int:
        """How many lines of a model are to be in flight: enough that its workers never wait."""
        slots = sum(
            worker.slots
            for worker in self._dispatcher.workers()
            if worker.card.id == model and not worker.draining
        )
        if not slots:
            return 0
        if self._settings.window is not None:
            return self._settings.window
        return min(self._settings.max_window, max(slots + _LEAST_AHEAD, _AHEAD * slots))
