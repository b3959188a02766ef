"""An account: what its keys may do, and how much of it. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from ingress.dialects.profile import ProfileName
from schemas.errors import AccountDisabled, ModelAccessDenied
from schemas.job import Job
from schemas.model_card import ModelCard

Period: TypeAlias = Literal["day", "month", "total"]


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What an account may spend.

    Attributes:
        cents: By the prices of the catalogue; models without one cost nothing.
        period: Days and months begin at midnight UTC.
    """

    cents: int
    period: Period = "month"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much an account may use at once and by the minute, all its keys and all pods together.

    None is no limit.

    Attributes:
        concurrency: Requests in flight.
        requests_per_minute: In any 60 seconds.
        tokens_per_minute: Prompt and output together, in any 60 seconds.
    """

    concurrency: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    budget: Budget | None = None

    @property
    def any(self) -> bool:
        """Whether there is anything to hold."""
        return self != _NO_LIMITS


_NO_LIMITS: Final = Limits()


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """One account.

    Attributes:
        account_id: Names it in records and logs.
        name: For people.
        disabled: Its keys are known and refused.
        models: Ids or catalogue aliases of the models it may use; None for all.
        aliases: Its own names for models: name to id. They come before the catalogue's.
        always_zdr: Every request is treated as one that requires zero data retention.
        profile: Its dialect profile; None for the deployment's.
        priorities: The lowest and highest `priority` that its requests may ask for; None leaves
            that to the model.
        limits: See `Limits`.
    """

    account_id: str
    name: str = ""
    disabled: bool = False
    models: tuple[str, ...] | None = None
    aliases: Mapping[str, str] = {}
    always_zdr: bool = False
    profile: ProfileName | None = None
    priorities: tuple[int, int] | None = None
    limits: Limits = Limits()

    def require_enabled(self) -> None:
        """Check that it may use anything.

        Raises:
            AccountDisabled: It is suspended.
        """
        if self.disabled:
            raise AccountDisabled("This account is disabled.")

    def model_named(self, name: str) -> str:
        """What the catalogue is to look for when a request asks for `name`."""
        if not self.aliases:
            return name
        wanted = name.casefold()
        return next(
            (model for alias, model in self.aliases.items() if alias.casefold() == wanted), name
        )

    def may_use(self, card: ModelCard) -> bool:
        """Whether it has access to a model."""
        if self.models is None:
            return True
        names = {name.casefold() for name in (card.id, *card.aliases)}
        return any(model.casefold() in names for model in self.models)

    def ranked(self, job: Job, card: ModelCard) -> Job:
        """The Job with a rank that its requests may have, if it asks for none: that nearest to 0.

        What asks for one has been checked before.
        """
        lowest, highest = card.capabilities.engine.priorities
        engine = job.sampling.engine
        if self.priorities is None or lowest == highest or engine.priority is not None:
            return job
        rank = max(self.priorities[0], min(0, self.priorities[1]))
        engine = msgspec.structs.replace(engine, priority=max(lowest, min(rank, highest)))
        sampling = msgspec.structs.replace(job.sampling, engine=engine)
        return msgspec.structs.replace(job, sampling=sampling)

    def require_access(self, card: ModelCard) -> None:
        """Check that it may use a model that exists.

        Raises:
            ModelAccessDenied: It may not.
        """
        if not self.may_use(card):
            raise ModelAccessDenied("This account has no access to the model.", param="model")


UNLIMITED: Final = Account(account_id="anonymous")
"""Of everybody, where there are no accounts."""
