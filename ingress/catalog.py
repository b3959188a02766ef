"""The served models: lookup by name, and what a request may count on.

A worker announces what it knows of its model; what the configuration file says of it comes before
that, field by field. Live presence decides availability only: a configured model without a worker
is known and unavailable.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingress.config import ModelConfig
from schemas.errors import ModelNotFound, ModelUnavailable
from schemas.model_card import ModelCard
from schemas.transport.base import Dispatcher


class Catalog:
    """Looks models up.

    Args:
        configured: Models of the configuration file, in its order.
        known_ids: Ids that exist although nothing is known about them yet.
        dispatcher: Knows the workers.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        configured: Sequence[ModelConfig] = (),
        known_ids: Sequence[str] = (),
    ) -> None:
        self._dispatcher = dispatcher
        self._configured = {model.id.casefold(): model for model in configured}
        self._known_names = frozenset(
            name.casefold()
            for name in (
                *known_ids,
                *(name for model in configured for name in (model.id, *(model.aliases or ()))),
            )
        )

    def models(self) -> tuple[ModelCard, ...]:
        """Every model that something is known of: the file's first, then the workers' others."""
        told: dict[str, ModelCard] = {}
        for worker in self._dispatcher.workers():
            told.setdefault(worker.card.id.casefold(), worker.card)
        configured = [model.card(told.pop(key, None)) for key, model in self._configured.items()]
        return (*(card for card in configured if card is not None), *told.values())

    def lookup(self, name: str) -> ModelCard:
        """The card of a model, by id or alias, whatever the case.

        Raises:
            ModelNotFound: There is no such model.
            ModelUnavailable: It exists, or may exist, but no worker has told about it yet.
        """
        wanted = name.casefold()
        cards = self.models()
        if (card := find(cards, name)) is not None:
            return card
        if wanted in self._known_names or not (cards or self._known_names):
            raise ModelUnavailable("No worker is ready to serve this model; try again shortly.")
        raise ModelNotFound("The requested model does not exist.", param="model")

    def require_worker(self, card: ModelCard) -> None:
        """Check that somebody serves the model.

        Raises:
            ModelUnavailable: Nobody does.
        """
        if not self.available(card):
            raise ModelUnavailable("No worker is ready to serve this model; try again shortly.")

    def available(self, card: ModelCard) -> bool:
        """Whether a worker that takes Jobs serves the model."""
        return any(
            worker.card.id == card.id and not worker.draining
            for worker in self._dispatcher.workers()
        )

    def free_slots(self, card: ModelCard) -> int:
        """How many live Jobs of the model would not wait, as far as its workers have told.

        Slots that batch work holds are free for them.
        """
        return sum(
            worker.live_room for worker in self._dispatcher.workers() if worker.card.id == card.id
        )

    def clock_ahead_s(self, card: ModelCard) -> float:
        """By how much the clock of some worker of the model is ahead of ours; 0 if none is.

        A deadline that workers are to judge must be later by so much, or they would think it past.
        """
        workers = self._dispatcher.workers()
        ahead = (worker.clock_ahead_s for worker in workers if worker.card.id == card.id)
        return max((0.0, *ahead))

    def ready(self) -> bool:
        """Whether any model can answer."""
        return any(not worker.draining for worker in self._dispatcher.workers())


def find(cards: Sequence[ModelCard], name: str) -> ModelCard | None:
    """The card of an id, else of an alias, whatever the case."""
    wanted = name.casefold()
    for card in cards:
        if card.id.casefold() == wanted:
            return card
    for card in cards:
        if any(alias.casefold() == wanted for alias in card.aliases):
            return card
    return None
