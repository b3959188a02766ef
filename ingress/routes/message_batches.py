"""Anthropic message batches: the requests come in the body, the results go in one stream of lines.

Source: wire reference of the batch APIs, "Anthropic message batches".
"""

from __future__ import annotations

import re
import time
from typing import Any, Final

import structlog
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ingress.auth import Principal
from ingress.batch import lifecycle
from ingress.batch.access import Stores, stores_of
from ingress.batch.creation import create_message_batch
from ingress.batch.download import Download
from ingress.batch.objects import (
    DEFAULT_PAGE,
    LARGEST_MESSAGES_PAGE,
    deleted_message_batch,
    message_batch_list,
    message_batch_object,
)
from ingress.dialects import wire_json
from ingress.dialects.messages import Messages
from ingress.paging import page_limit
from ingress.public_url import public_url
from ingress.routes.by_method import add_path
from ingress.services import Services
from schemas.batch import Batch
from schemas.blobs.base import BlobStoreUnavailable
from schemas.errors import BatchNotFound, NotFound, UnsupportedValue

log = structlog.get_logger()

_ID: Final = re.compile(r"msgbatch_[0-9a-f]{24}")


def message_batch_routes(services: Services) -> APIRouter:
    """`/v1/messages/batches` and what is below it."""
    router = APIRouter(include_in_schema=False)
    batches = _MessageBatches(services)
    root = f"{Messages.path}/batches"
    one = f"{root}/{{batch_id}}"
    add_path(router, root, get=batches.list, post=batches.create)
    add_path(router, one, get=batches.retrieve, delete=batches.delete)
    add_path(router, f"{one}/cancel", post=batches.cancel)
    add_path(router, f"{one}/results", get=batches.results)
    return router


class _MessageBatches:
    """The endpoints."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def create(self, request: Request) -> Response:
        return self._show(request, await create_message_batch(request, self._services))

    async def list(self, request: Request) -> Response:
        principal, stores = self._enter(request)
        query = request.query_params
        limit = page_limit(query.get("limit"), default=DEFAULT_PAGE, largest=LARGEST_MESSAGES_PAGE)
        after, before = _cursor(query.get("after_id"), "after_id"), query.get("before_id")
        if after is not None and before is not None:
            raise UnsupportedValue(
                "`after_id` and `before_id` cannot be used together.", param="before_id"
            )
        before = _cursor(before, "before_id")
        page = await stores.records.batches(
            principal.account, "messages", limit=limit, after=after, before=before
        )
        if page is None:
            raise _bad_cursor("before_id" if after is None else "after_id")
        return _json(message_batch_list(page, self._url(request)))

    async def retrieve(self, request: Request) -> Response:
        principal, stores = self._enter(request)
        return self._show(request, await _find(stores, principal, request))

    async def cancel(self, request: Request) -> Response:
        principal, stores = self._enter(request)
        now = time.time()
        batch = await stores.records.change_batch(
            _batch_id(request),
            lambda batch: lifecycle.cancel(batch, now),
            account=principal.account,
        )
        return self._show(request, batch)

    async def delete(self, request: Request) -> Response:
        principal, stores = self._enter(request)
        batch = await stores.records.delete_batch(
            principal.account, _batch_id(request), lifecycle.require_ended
        )
        if batch is None:
            raise _not_found()
        await _drop_blobs(stores, batch)
        return _json(deleted_message_batch(batch.batch_id))

    async def results(self, request: Request) -> Response:
        principal, stores = self._enter(request)
        batch = await _find(stores, principal, request)
        lifecycle.require_ended(batch)
        if batch.archived_at is not None or batch.results_blob is None:
            raise _no_results()
        return Download(
            self._services,
            principal,
            blob=batch.results_blob,
            file_id=batch.batch_id,
            size=None,
            headers={
                "content-type": "application/x-jsonl",
                "x-content-type-options": "nosniff",
            },
            missing=_no_results,
        )

    def _enter(self, request: Request) -> tuple[Principal, Stores]:
        principal = self._services.authenticator.authenticate(request.scope["headers"])
        return principal, stores_of(self._services)

    def _url(self, request: Request) -> str:
        return public_url(request, self._services.settings.public_url)

    def _show(self, request: Request, batch: Batch | None) -> Response:
        if batch is None:
            raise _not_found()
        return _json(message_batch_object(batch, self._url(request)))


async def _find(stores: Stores, principal: Principal, request: Request) -> Batch:
    batch = await stores.records.batch(principal.account, _batch_id(request))
    if batch is None:
        raise _not_found()
    return batch


async def _drop_blobs(stores: Stores, batch: Batch) -> None:
    """Delete the contents of a batch that has no record; if that fails it is for the sweeper."""
    for blob in (batch.input_blob, batch.results_blob):
        try:
            if blob is not None:
                await stores.blobs.delete(blob)
        except BlobStoreUnavailable:
            log.warning("batch.left_behind", batch_id=batch.batch_id)


def _batch_id(request: Request) -> str:
    """What can be an id; nothing else is looked up."""
    batch_id: str = request.path_params["batch_id"]
    if not _ID.fullmatch(batch_id):
        raise _not_found()
    return batch_id


def _cursor(text: str | None, param: str) -> str | None:
    if text is not None and not _ID.fullmatch(text):
        raise _bad_cursor(param)
    return text


def _bad_cursor(param: str) -> UnsupportedValue:
    return UnsupportedValue(f"`{param}` must be the id of one of your batches.", param=param)


def _not_found() -> BatchNotFound:
    return BatchNotFound("There is no such message batch.", param="message_batch_id")


def _no_results() -> NotFound:
    return NotFound("The results of this batch are not there any more; they are kept for 29 days.")


def _json(value: dict[str, Any]) -> Response:
    return Response(wire_json.encode(value), media_type="application/json")
