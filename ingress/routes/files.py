"""Files: what batches are made of and what they give.

Source: wire reference of the batch APIs, "Files".
"""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ingress.auth import Principal
from ingress.batch.access import Stores, stores_of
from ingress.batch.download import Download
from ingress.batch.file_object import (
    FILE_ID,
    attachment,
    deleted_file,
    file_list,
    file_not_found,
    file_object,
    file_query,
    unknown_after,
)
from ingress.batch.upload import drop_blob, upload
from ingress.dialects import wire_json
from ingress.routes.by_method import add_path
from ingress.services import Services
from ingress.stores.base import FileInUse
from schemas.batch import StoredFile
from schemas.errors import FileIsInUse


def file_routes(services: Services) -> APIRouter:
    """`/v1/files` and what is below it."""
    router = APIRouter(include_in_schema=False)
    files = _Files(services)
    add_path(router, "/v1/files", get=files.list, post=files.create)
    add_path(router, "/v1/files/{file_id}", get=files.retrieve, delete=files.delete)
    add_path(router, "/v1/files/{file_id}/content", get=files.content)
    return router


class _Files:
    """The endpoints; all but the upload answer at once from the records."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def create(self, request: Request) -> Response:
        return _json(file_object(await upload(request, self._services)))

    async def list(self, request: Request) -> Response:
        principal, stores = self._enter(request)
        query = file_query(request.query_params)
        page = await stores.records.files(
            principal.account,
            now=time.time(),
            limit=query.limit,
            purpose=query.purpose,
            order=query.order,
            after=query.after,
        )
        if page is None:
            raise unknown_after()
        return _json(file_list(page))

    async def retrieve(self, request: Request) -> Response:
        principal, stores = self._enter(request)
        return _json(file_object(await _find(stores, principal, request)))

    async def delete(self, request: Request) -> Response:
        principal, stores = self._enter(request)
        file = await _find(stores, principal, request)
        try:
            deleted = await stores.records.delete_file(file.account, file.file_id, time.time())
        except FileInUse:
            raise FileIsInUse(
                "The file is the input of a batch that has not ended.", param="file_id"
            ) from None
        if deleted is None:
            raise file_not_found()
        await drop_blob(stores, deleted)
        return _json(deleted_file(deleted.file_id))

    async def content(self, request: Request) -> Response:
        principal, stores = self._enter(request)
        file = await _find(stores, principal, request)
        return Download(
            self._services,
            principal,
            blob=file.blob,
            file_id=file.file_id,
            size=file.size,
            headers={
                "content-type": "application/octet-stream",
                "content-disposition": attachment(file.filename),
                "x-content-type-options": "nosniff",
            },
            missing=file_not_found,
        )

    def _enter(self, request: Request) -> tuple[Principal, Stores]:
        principal = self._services.authenticator.authenticate(request.scope["headers"])
        return principal, stores_of(self._services)


async def _find(stores: Stores, principal: Principal, request: Request) -> StoredFile:
    # What cannot be an id is not looked up: a database may not even take its characters.
    found = None
    file_id = request.path_params["file_id"]
    if FILE_ID.fullmatch(file_id):
        found = await stores.records.file(principal.account, file_id, time.time())
    if found is None:
        raise file_not_found()
    return found


def _json(value: dict[str, Any]) -> Response:
    return Response(wire_json.encode(value), media_type="application/json")
