"""The terms of an account as people write them: in the configuration file, on the command line, in
the admin API. Checked here, once; inside they are an `Account`.

A model need not be known: workers come and go, and terms may be written before the model is there.
An alias must lead to a model that the account may use, or every request for it would be refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)
from pydantic_core import PydanticCustomError

from ingress.accounts import account as values
from ingress.accounts.account import Account, Period
from ingress.dialects.profile import ProfileName

_NOT_GIVEN: Final = re.compile("anonymous|[0-9a-f]{24}")


def _given(account_id: str) -> str:
    if _NOT_GIVEN.fullmatch(account_id):
        raise PydanticCustomError(
            "unsupported_value", "must not be the id of who has no account, or of a key without one"
        )
    return account_id


AccountId = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$"), AfterValidator(_given)
]
"""Lower case, so that no two differ in case alone; as it is in a path and in a file name."""

_MOST: Final = 1 << 53
"""What every reader of JSON can tell exactly."""

_Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
_Count = Annotated[int, Field(gt=0, le=_MOST)]
_ARRAY = Field(strict=False)
"""A tuple is written as an array."""

_Rank = Annotated[int, Field(ge=-1_000_000, le=1_000_000)]


class Misplaced(ValueError):
    """A mistake that a check of the whole finds in one place of it.

    Attributes:
        location: Where, from the whole.
    """

    def __init__(self, location: Sequence[str | int], message: str) -> None:
        super().__init__(message)
        self.location = tuple(location)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


class BudgetTerms(_Section):
    """As `Budget`.

    Attributes:
        cents: What may be spent in a period, by the prices of the catalogue.
        period: They begin at midnight UTC.
    """

    cents: Annotated[int, Field(ge=0, le=_MOST)]
    period: Period = "month"


class LimitTerms(_Section):
    """As `Limits`.

    Attributes:
        concurrency: Requests in flight.
        requests_per_minute: Requests in any 60 seconds.
        tokens_per_minute: Tokens of prompts and answers in any 60 seconds.
        budget: What it may spend.
    """

    concurrency: _Count | None = None
    requests_per_minute: _Count | None = None
    tokens_per_minute: _Count | None = None
    budget: BudgetTerms | None = None


class AccountTerms(_Section):
    """As `Account`, but for its id.

    Attributes:
        name: For people.
        disabled: Every request is refused with 403; keys stay.
        models: Ids or names of the only models that it may use; an empty list is none. Without,
            all.
        aliases: Its own names for models: name to id.
        always_zdr: Every request is treated as one that requires zero data retention.
        profile: Its dialect profile. Without, that of the deployment.
        priorities: Lowest and highest `priority` of its requests. Without, as the model has it.
        limits: What it may use; without, all there is.
    """

    name: Annotated[str, StringConstraints(max_length=256)] = ""
    disabled: bool = False
    models: Annotated[tuple[_Name, ...] | None, _ARRAY] = None
    aliases: dict[_Name, _Name] = {}
    always_zdr: bool = False
    profile: ProfileName | None = None
    priorities: Annotated[tuple[_Rank, _Rank] | None, _ARRAY] = None
    limits: LimitTerms = LimitTerms()

    @model_validator(mode="after")
    def _make_sense_together(self) -> Self:
        if self.priorities is not None and self.priorities[0] > self.priorities[1]:
            raise Misplaced(("priorities",), "the lowest comes first")
        _require_unique("models", self.models or ())
        _require_unique("aliases", tuple(self.aliases))
        if self.models is not None:
            allowed = {model.casefold() for model in self.models}
            for alias, model in self.aliases.items():
                if model.casefold() not in allowed:
                    raise Misplaced(
                        ("aliases", alias), f"{model!r} is not among the models of the account"
                    )
        return self

    def account(self, account_id: str) -> Account:
        """The account of these terms."""
        limits = self.limits.model_dump()
        if self.limits.budget is not None:
            limits["budget"] = values.Budget(**self.limits.budget.model_dump())
        return Account(
            account_id=account_id,
            **{**self.written(), "limits": values.Limits(**limits)},
        )

    def written(self) -> dict[str, Any]:
        """The terms alone, whatever else a subclass has."""
        return {name: getattr(self, name) for name in AccountTerms.model_fields}


def terms_of(account: Account) -> dict[str, Any]:
    """The terms of an account as they are written; `AccountTerms` takes them back."""
    limits = account.limits
    budget = limits.budget
    return {
        "name": account.name,
        "disabled": account.disabled,
        "models": None if account.models is None else list(account.models),
        "aliases": dict(account.aliases),
        "always_zdr": account.always_zdr,
        "profile": account.profile,
        "priorities": None if account.priorities is None else list(account.priorities),
        "limits": {
            "concurrency": limits.concurrency,
            "requests_per_minute": limits.requests_per_minute,
            "tokens_per_minute": limits.tokens_per_minute,
            "budget": None if budget is None else {"cents": budget.cents, "period": budget.period},
        },
    }


def changed(account: Account, changes: Mapping[str, Any]) -> Account:
    """The account with some of its terms replaced; `limits` one by one, all else as a whole.

    Raises:
        ValidationError: They do not make sense.
    """
    terms = terms_of(account)
    limits = changes.get("limits")
    written = {**terms, **changes}
    if isinstance(limits, Mapping):
        written["limits"] = {**terms["limits"], **limits}
    elif "limits" in changes and limits is None:
        written["limits"] = {}
    return AccountTerms.model_validate(written).account(account.account_id)


def _require_unique(field: str, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for number, name in enumerate(names):
        if name.casefold() in seen:
            where = name if field == "aliases" else number
            raise Misplaced((field, where), f"the name {name!r} is used twice")
        seen.add(name.casefold())
