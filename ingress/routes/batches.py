"""OpenAI batches: made of a file, ending in files.

Source: wire reference of the batch APIs, "OpenAI batches".
"""

from __future__ import annotations

import re
import time
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ingress.auth import Principal
from ingress.batch import lifecycle
from ingress.batch.access import Stores, stores_of
from ingress.batch.creation import create_openai_batch
from ingress.batch.objects import DEFAULT_PAGE, LARGEST_PAGE, batch_list, batch_object
from ingress.dialects import wire_json
from ingress.paging import page_limit
from ingress.routes.by_method import add_path
from ingress.services import Services
from schemas.batch import Batch
from schemas.errors import BatchNotFound, UnsupportedValue

_ID: Final = re.compile(r"batch_[0-9a-f]{24}")


def batch_routes(services: Services) -> APIRouter:
    """`/v1/batches` and what is below it."""
    router = APIRouter(include_in_schema=False)
    batches = _Batches(services)
    add_path(router, "/v1/batches", get=batches.list, post=batches.create)
    add_path(router, "/v1/batches/{batch_id}", get=batches.retrieve)
    add_path(router, "/v1/batches/{batch_id}/cancel", post=batches.cancel)
    return router


class _Batches:
    """The endpoints."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def create(self, request: Request) -> Response:
        return _json(batch_object(await create_openai_batch(request, self._services)))

    async def list(self, request: Request) -> Response:
        principal, stores = self._enter(request)
        query = request.query_params
        limit = page_limit(query.get("limit"), default=DEFAULT_PAGE, largest=LARGEST_PAGE)
        after = query.get("after")
        page = None
        if after is None or _ID.fullmatch(after):
            page = await stores.records.batches(
                principal.account, "openai", limit=limit, after=after
            )
        if page is None:
            raise UnsupportedValue("`after` must be the id of one of your batches.", param="after")
        return _json(batch_list(page))

    async def retrieve(self, request: Request) -> Response:
        principal, stores = self._enter(request)
        batch_id = _batch_id(request)
        return _json(_shown(await stores.records.batch(principal.account, batch_id)))

    async def cancel(self, request: Request) -> Response:
        principal, stores = self._enter(request)
        now = time.time()
        batch = await stores.records.change_batch(
            _batch_id(request),
            lambda batch: lifecycle.cancel(batch, now),
            account=principal.account,
        )
        return _json(_shown(batch))

    def _enter(self, request: Request) -> tuple[Principal, Stores]:
        principal = self._services.authenticator.authenticate(request.scope["headers"])
        return principal, stores_of(self._services)


def _batch_id(request: Request) -> str:
    """What can be an id; nothing else is looked up."""
    batch_id: str = request.path_params["batch_id"]
    if not _ID.fullmatch(batch_id):
        raise _not_found()
    return batch_id


def _shown(batch: Batch | None) -> dict[str, Any]:
    if batch is None:
        raise _not_found()
    return batch_object(batch)


def _not_found() -> BatchNotFound:
    return BatchNotFound("There is no such batch.", param="batch_id")


def _json(value: dict[str, Any]) -> Response:
    return Response(wire_json.encode(value), media_type="application/json")
