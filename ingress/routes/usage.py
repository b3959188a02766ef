"""`GET /v1/usage`: what the caller's account has used.

Source: model catalogue, section 5.
"""

from __future__ import annotations

import time
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ingress.dialects import wire_json
from ingress.routes.by_method import add_path
from ingress.services import Services
from ingress.usage.report import figures_of, groups_of, span_of, told_moment, total_of
from ingress.usage.store import Group, Selection, UsageStore
from schemas.errors import EndpointNotSupported

_GROUPS: Final[tuple[Group, ...]] = ("day", "model", "key")
_DEFAULT: Final = "day,model"
_LISTS: Final = {"day": "days", "model": "models", "key": "keys"}
_NAMES: Final = {"day": "date", "model": "model", "key": "key"}


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
    which = Selection(
        start=span.start,
        end=span.end,
        account=account,
        key=query.get("key"),
        model=query.get("model"),
    )
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
                _NAMES[group]: part,
                **figures_of(total_of([used for used in sums if getattr(used, group) == part])),
            }
            for part in parts
        ]
    report["totals"] = figures_of(total_of(sums))
    return report


def _store(services: Services) -> UsageStore:
    if services.usage.store is None:
        raise EndpointNotSupported("This server keeps no usage: it runs without a database.")
    return services.usage.store


def _json(value: dict[str, Any]) -> Response:
    return Response(wire_json.encode(value), media_type="application/json")
