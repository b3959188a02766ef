"""`GET /v1/usage`: what the caller's account has used. For an operator: what all have.

Source: model catalogue, section 5, of the caller's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ingress.dialects import wire_json
from ingress.paging import page_limit
from ingress.routes.by_method import add_path
from ingress.services import Services
from ingress.usage.report import (
    Place,
    Span,
    figures_of,
    groups_of,
    place_of,
    span_of,
    told_moment,
    total_of,
)
from ingress.usage.store import GROUPS, Group, Selection, UsageStore, UsageSum
from schemas.errors import EndpointNotSupported

_GROUPS: Final[tuple[Group, ...]] = ("day", "model", "key")
_DEFAULT: Final = "day,model"
_LISTS: Final = {"day": "days", "model": "models", "key": "keys"}
_NAMES: Final = {"day": "date"}
"""Of what sums are parted by, where it has another name as a field."""

_DEFAULT_OF_ALL: Final = "day,account"
_DEFAULT_PAGE: Final = 1000
_LARGEST_PAGE: Final = 10_000


def usage_routes(services: Services) -> APIRouter:
    """`/v1/usage`."""
    router = APIRouter(include_in_schema=False)

    async def usage(request: Request) -> Response:
        principal = services.authenticator.authenticate(request.scope["headers"])
        return _json(await _report(_store(services), principal.account, request))

    add_path(router, "/v1/usage", get=usage)
    return router


async def _report(store: UsageStore, account: str, request: Request) -> dict[str, Any]:
    query = request.query_params
    span = span_of(query, time.time())
    groups = groups_of(query.get("group_by"), _GROUPS, _DEFAULT)
    which = _selection(query, span, account)
    # Of one and the same moment, so that lists and totals agree.
    sums = await store.sums(which, groups)
    report: dict[str, Any] = {
        "object": "usage",
        "account": account,
        "start": told_moment(span.start),
        "end": told_moment(span.end),
    }
    for group in groups:
        parts = sorted({getattr(used, group) for used in sums})
        report[_LISTS[group]] = [
            {
                _NAMES.get(group, group): part,
                **figures_of(total_of([used for used in sums if getattr(used, group) == part])),
            }
            for part in parts
        ]
    report["totals"] = figures_of(total_of(sums))
    return report


async def usage_of_all(services: Services, request: Request) -> dict[str, Any]:
    """What all accounts have used: a page of sums, and the sum of all pages.

    Raises:
        RequestError: It cannot be told what is asked for, or nothing is kept.
    """
    store = _store(services)
    query = request.query_params
    groups = groups_of(query.get("group_by"), GROUPS, _DEFAULT_OF_ALL)
    limit = page_limit(query.get("limit"), default=_DEFAULT_PAGE, largest=_LARGEST_PAGE)
    page = query.get("page")
    place = None if page is None else place_of(page, groups)
    span = span_of(query, time.time()) if place is None else place.span
    which = _selection(query, span, query.get("account"))
    after = None if place is None else place.after
    sums = await store.sums(which, groups, limit=limit + 1, after=after)
    shown, more = sums[:limit], len(sums) > limit
    whole = shown if place is None and not more else await store.sums(which)
    return {
        "object": "usage",
        "start": told_moment(span.start),
        "end": told_moment(span.end),
        "data": [{**_parts(used, groups), **figures_of(used)} for used in shown],
        "totals": figures_of(total_of(whole)),
        "has_more": more,
        "next_page": Place(span, _after(shown[-1], groups)).text() if more else None,
    }


def _selection(query: Mapping[str, str], span: Span, account: str | None) -> Selection:
    return Selection(
        start=span.start,
        end=span.end,
        account=account,
        key=query.get("key"),
        model=query.get("model"),
    )


def _parts(used: UsageSum, groups: Sequence[Group]) -> dict[str, str]:
    return {_NAMES.get(group, group): getattr(used, group) for group in groups}


def _after(used: UsageSum, groups: Sequence[Group]) -> tuple[str, ...]:
    return tuple(_parts(used, groups).values())


def _store(services: Services) -> UsageStore:
    if services.usage.store is None:
        raise EndpointNotSupported("This server keeps no usage: it runs without a database.")
    return services.usage.store


def _json(value: dict[str, Any]) -> Response:
    return Response(wire_json.encode(value), media_type="application/json")
