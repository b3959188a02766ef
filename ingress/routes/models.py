"""The model catalogue, with one body for both client families.

Public: answered without a key, but a key that is sent must be valid, and then only what its account
may use is there. A model is listed under its id and then under each of its aliases, since some
clients only offer names that begin in a certain way. The aliases of an account come before the
catalogue's, here as in its requests: a name is listed for the model that answers to it.

Source: model catalogue, sections 2 to 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ingress.accounts.account import UNLIMITED, Account
from ingress.catalog import find
from ingress.dialects import wire_json
from ingress.errors import speaks_anthropic
from ingress.model_object import model_object
from ingress.paging import page_limit
from ingress.services import Services
from schemas.errors import MissingApiKey, ModelNotFound, UnsupportedValue
from schemas.model_card import ModelCard

DEFAULT_PAGE = 20
LARGEST_PAGE = 1000
_PAGE_PARAMETERS = ("limit", "after_id", "before_id")


def model_routes(services: Services) -> APIRouter:
    """`/v1/models` and `/v1/models/{id}`; ids may contain slashes."""
    router = APIRouter(include_in_schema=False)

    def entries_for(request: Request) -> list[dict[str, Any]]:
        try:
            terms = services.authenticator.authenticate(request.scope["headers"]).terms
        except MissingApiKey:
            terms = UNLIMITED
        return _entries(services.catalog.models(), terms)

    async def list_models(request: Request) -> Response:
        entries = entries_for(request)
        query = request.query_params
        more = False
        if speaks_anthropic(request) or any(name in query for name in _PAGE_PARAMETERS):
            entries, more = _page(
                entries,
                limit=page_limit(query.get("limit"), default=DEFAULT_PAGE, largest=LARGEST_PAGE),
                after=query.get("after_id"),
                before=query.get("before_id"),
            )
        return _json(
            {
                "object": "list",
                "data": entries,
                "has_more": more,
                "first_id": entries[0]["id"] if entries else None,
                "last_id": entries[-1]["id"] if entries else None,
            }
        )

    async def retrieve_model(request: Request, model: str) -> Response:
        entries = entries_for(request)
        position = _position(entries, model)
        if position is None:
            raise ModelNotFound("The requested model does not exist.", param="model")
        return _json(entries[position])

    router.add_api_route("/v1/models", list_models, methods=["GET", "HEAD"])
    router.add_api_route("/v1/models/{model:path}", retrieve_model, methods=["GET", "HEAD"])
    return router


def _entries(cards: Sequence[ModelCard], terms: Account) -> list[dict[str, Any]]:
    """Every model under every name. A name that several have goes to the one that answers to it."""
    given = {alias.casefold() for alias in terms.aliases}
    taken = {card.id.casefold() for card in cards} | given
    entries = []
    for card in cards:
        usable = terms.may_use(card)
        if usable and card.id.casefold() not in given:
            entries.append(model_object(card))
        for alias, model in terms.aliases.items():
            if usable and find(cards, model) is card:
                entries.append(model_object(card, alias))
        for alias in card.aliases:
            if alias.casefold() not in taken:
                taken.add(alias.casefold())
                if usable:
                    entries.append(model_object(card, alias))
    return entries


def _position(entries: Sequence[dict[str, Any]], name: str) -> int | None:
    wanted = name.casefold()
    for position, entry in enumerate(entries):
        if entry["id"].casefold() == wanted:
            return position
    return None


def _page(
    entries: list[dict[str, Any]], *, limit: int, after: str | None, before: str | None
) -> tuple[list[dict[str, Any]], bool]:
    """One page, and whether there is more in the direction of reading."""
    if after is not None and before is not None:
        raise UnsupportedValue(
            "`after_id` and `before_id` cannot be used together.", param="before_id"
        )
    if before is not None:
        end = _cursor(entries, before, "before_id")
        start = max(0, end - limit)
        return entries[start:end], start > 0
    start = 0 if after is None else _cursor(entries, after, "after_id") + 1
    return entries[start : start + limit], start + limit < len(entries)


def _cursor(entries: Sequence[dict[str, Any]], name: str, param: str) -> int:
    position = _position(entries, name)
    if position is None:
        raise UnsupportedValue(f"`{param}` must be the id of a listed model.", param=param)
    return position


def _json(value: dict[str, Any]) -> Response:
    return Response(wire_json.encode(value), media_type="application/json")
