"""The served models: lookup by name, and what a request may count on.

A card in the configuration file is what the operator promises; without one, the card that a worker
announces is. Live presence decides availability only: a configured model without a worker is known
and unavailable.
"""

from __future__ import annotations

from collections.abc import Sequence

from schemas.errors import ModelNotFound, ModelUnavailable
from schemas.model_card import ModelCard
from schemas.transport.base import Dispatcher


class Catalog:
    """Looks models up.

    Args:
        configured: Cards from the configuration file, in its order.
        known_ids: Ids that exist although nothing is known about them yet.
        dispatcher: Knows the workers.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        configured: Sequence[ModelCard] = (),
        known_ids: Sequence[str] = (),
    ) -> None:
        self._dispatcher = dispatcher
        self._configured = tuple(configured)
        self._known_ids = frozenset(name.casefold() for name in known_ids)

    def models(self) -> tuple[ModelCard, ...]:
        """Every model that can be named now."""
        cards = {card.id.casefold(): card for card in self._configured}
        for worker in self._dispatcher.workers():
            cards.setdefault(worker.card.id.casefold(), worker.card)
        return tuple(cards.values())

    def lookup(self, name: str) -> ModelCard:
        """The card of a model, by id or alias, whatever the case.

        Raises:
            ModelNotFound: There is no such model.
            ModelUnavailable: It exists, or may exist, but no worker has told about it yet.
        """
        wanted = name.casefold()
        cards = self.models()
        for card in cards:
            if card.id.casefold() == wanted:
                return card
        for card in cards:
            if any(alias.casefold() == wanted for alias in card.aliases):
                return card
        if wanted in self._known_ids or not (cards or self._known_ids):
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

    def ready(self) -> bool:
        """Whether any model can answer."""
        return any(not worker.draining for worker in self._dispatcher.workers())
