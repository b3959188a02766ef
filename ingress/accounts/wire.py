"""Bodies of the admin API, and the objects that it answers with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field, StringConstraints, ValidationError

from ingress.accounts.administration import LONGEST_OVERLAP_S, IssuedKey
from ingress.accounts.store import AccountRecord, KeyRecord
from ingress.accounts.terms import AccountId, AccountTerms, Misplaced, terms_of
from ingress.dialects.validation import Integer, WireModel, explain, field_path
from ingress.stores.base import Page
from schemas.errors import InvalidJson, UnsupportedParameter, UnsupportedValue

T = TypeVar("T")

LONGEST_LABEL: Final = 64

_LAST_SECOND: Final = 253_402_300_799
"""The end of the year 9999."""


Label = Annotated[str, StringConstraints(max_length=LONGEST_LABEL)]
ExpiresAt = Annotated[Integer, Field(gt=0, le=_LAST_SECOND)]


class CreateAccount(AccountTerms):
    """The terms, and an id of one's own choice."""

    id: AccountId | None = None


class CreateKey(WireModel):
    """What a key is to be."""

    account_id: str
    label: Label = ""
    expires_at: ExpiresAt | None = None


class RotateKey(WireModel):
    """How one key follows another."""

    overlap_s: Annotated[float, Field(ge=0, le=LONGEST_OVERLAP_S)] = 0.0
    expires_at: ExpiresAt | None = None


def terms_from(make: Callable[[], T]) -> T:
    """What `make` returns.

    Raises:
        RequestError: The terms that it was given make no sense.
    """
    try:
        return make()
    except ValidationError as error:
        raised = error
    raise mistake(raised)


def mistake(error: ValidationError) -> UnsupportedValue | Exception:
    """The first finding, in the API's own terms. Not to be chained: pydantic's quotes the input."""
    found = error.errors(include_url=False)[0]
    cause = found.get("ctx", {}).get("error")
    if isinstance(cause, Misplaced):
        param = field_path((*found["loc"], *cause.location))
        return UnsupportedValue(f"`{param}`: {cause}.", param=param)
    return explain(found)


def require_changes(body: Any) -> Mapping[str, Any]:
    """A body that names terms.

    Raises:
        RequestError: It is something else.
    """
    terms = require_object(body)
    for name in terms:
        if name not in AccountTerms.model_fields:
            raise UnsupportedParameter("The terms of an account have no such field.", param=name)
    return terms


def require_object(body: Any) -> Mapping[str, Any]:
    """A body that is an object.

    Raises:
        InvalidJson: It is something else.
    """
    if not isinstance(body, dict):
        raise InvalidJson("The request body must be a JSON object.")
    return body


def account_object(record: AccountRecord) -> dict[str, Any]:
    return {
        "id": record.account.account_id,
        "object": "account",
        "created_at": int(record.created_at),
        **terms_of(record.account),
    }


def key_object(record: KeyRecord, now: float) -> dict[str, Any]:
    return {
        "id": record.key_id,
        "object": "api_key",
        "account_id": record.account_id,
        "label": record.label,
        "active": record.active(now),
        "created_at": int(record.created_at),
        "expires_at": _whole(record.expires_at),
        "revoked_at": _whole(record.revoked_at),
    }


def issued_object(issued: IssuedKey, now: float) -> dict[str, Any]:
    """The key itself is in no other object."""
    return {**key_object(issued.record, now), "key": issued.text}


def list_object(items: Sequence[dict[str, Any]], page: Page[Any]) -> dict[str, Any]:
    return {
        "object": "list",
        "data": list(items),
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": page.more,
    }


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds)
