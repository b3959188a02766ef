"""`/admin/v1`: accounts, their keys and what they use, for who has the admin key.

Without such a key the paths are not there. What is changed holds in this process at once, and in
every other within a second or two.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import structlog
from fastapi import APIRouter
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from ingress.accounts.administration import Administration
from ingress.accounts.wire import (
    CreateAccount,
    CreateKey,
    RotateKey,
    account_object,
    issued_object,
    key_object,
    list_object,
    mistake,
    require_changes,
    require_object,
    terms_from,
)
from ingress.admission import check_length, read_json
from ingress.auth import AdminKey
from ingress.dialects import wire_json
from ingress.dialects.validation import validate
from ingress.paging import page_limit
from ingress.routes.by_method import Endpoint, add_path
from ingress.routes.usage import usage_of_all
from ingress.services import Services
from ingress.stores.base import StoreUnavailable
from schemas.errors import EndpointNotSupported

log = structlog.get_logger()

_MAX_BODY_BYTES: Final = 1_000_000
_DEFAULT_PAGE: Final = 100
_LARGEST_PAGE: Final = 1000


def admin_routes(services: Services) -> APIRouter:
    """All paths, or none if there is no admin key."""
    router = APIRouter(include_in_schema=False)
    if services.settings.admin_key is None:
        return router
    key = AdminKey(services.settings.admin_key)
    admin = _Admin(services)

    def guarded(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def guard(request: Request) -> Response:
            check_length(request, max_bytes=_MAX_BODY_BYTES)
            key.require(request.scope["headers"])
            return await endpoint(request)

        return guard

    root = "/admin/v1"
    add_path(
        router,
        f"{root}/accounts",
        get=guarded(admin.list_accounts),
        post=guarded(admin.create_account),
    )
    add_path(
        router,
        f"{root}/accounts/{{account_id}}",
        get=guarded(admin.retrieve_account),
        patch=guarded(admin.change_account),
        delete=guarded(admin.delete_account),
    )
    add_path(router, f"{root}/keys", get=guarded(admin.list_keys), post=guarded(admin.create_key))
    add_path(
        router,
        f"{root}/keys/{{key_id}}",
        get=guarded(admin.retrieve_key),
        delete=guarded(admin.revoke_key),
    )
    add_path(router, f"{root}/keys/{{key_id}}/rotate", post=guarded(admin.rotate_key))
    add_path(router, f"{root}/usage", get=guarded(admin.usage))
    return router


class _Admin:
    """The endpoints."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @property
    def _accounts(self) -> Administration:
        if self._services.accounts is None:
            raise EndpointNotSupported("This server keeps no accounts: it runs without a database.")
        return Administration(self._services.accounts, reserved=self._services.directory.reserved)

    # --- Accounts ---------------------------------------------------------------------------------

    async def list_accounts(self, request: Request) -> Response:
        query = request.query_params
        page = await self._accounts.accounts(limit=_page_size(request), after=query.get("after"))
        return _json(list_object(list(map(account_object, page.items)), page))

    async def create_account(self, request: Request) -> Response:
        accounts = self._accounts
        terms = require_object(await self._body(request))
        wanted = terms_from(lambda: CreateAccount.model_validate(terms))
        record = await accounts.create_account(wanted, wanted.id)
        await self._changed(request, "account.created", account=record.account.account_id)
        return _json(account_object(record))

    async def retrieve_account(self, request: Request) -> Response:
        return _json(account_object(await self._accounts.account(_account_id(request))))

    async def change_account(self, request: Request) -> Response:
        accounts = self._accounts
        changes = require_changes(await self._body(request))
        try:
            record = await accounts.change_account(_account_id(request), changes)
        except ValidationError as error:
            raised = mistake(error)
        else:
            await self._changed(request, "account.changed", account=record.account.account_id)
            return _json(account_object(record))
        raise raised

    async def delete_account(self, request: Request) -> Response:
        account_id = _account_id(request)
        await self._accounts.delete_account(account_id)
        await self._changed(request, "account.deleted", account=account_id)
        return _json({"id": account_id, "object": "account", "deleted": True})

    # --- Keys -------------------------------------------------------------------------------------

    async def list_keys(self, request: Request) -> Response:
        query, now = request.query_params, time.time()
        page = await self._accounts.keys(
            limit=_page_size(request),
            account_id=query.get("account_id"),
            after=query.get("after"),
        )
        return _json(list_object([key_object(key, now) for key in page.items], page))

    async def create_key(self, request: Request) -> Response:
        accounts = self._accounts
        wanted = validate(CreateKey, await self._body(request))
        issued = await accounts.create_key(
            wanted.account_id, label=wanted.label, expires_at=wanted.expires_at
        )
        await self._changed(request, "key.created", key=issued.record.key_id)
        return _secret(issued_object(issued, time.time()))

    async def retrieve_key(self, request: Request) -> Response:
        return _json(key_object(await self._accounts.key(_key_id(request)), time.time()))

    async def revoke_key(self, request: Request) -> Response:
        record = await self._accounts.revoke_key(_key_id(request))
        await self._changed(request, "key.revoked", key=record.key_id)
        return _json(key_object(record, time.time()))

    async def rotate_key(self, request: Request) -> Response:
        accounts = self._accounts
        wanted = validate(RotateKey, await self._body(request) if _has_body(request) else {})
        issued = await accounts.rotate_key(
            _key_id(request), overlap_s=wanted.overlap_s, expires_at=wanted.expires_at
        )
        await self._changed(
            request, "key.rotated", key=issued.record.key_id, instead_of=_key_id(request)
        )
        return _secret(issued_object(issued, time.time()))

    # --- Usage ------------------------------------------------------------------------------------

    async def usage(self, request: Request) -> Response:
        return _json(await usage_of_all(self._services, request))

    # --- All --------------------------------------------------------------------------------------

    async def _body(self, request: Request) -> Any:
        limits = self._services.settings.limits
        return await read_json(
            request, max_bytes=_MAX_BODY_BYTES, idle_s=limits.body_s, upload_s=limits.upload_s
        )

    async def _changed(self, request: Request, what: str, **ids: str) -> None:
        log.info(f"admin.{what}", request_id=request.state.request_id, **ids)
        with suppress(StoreUnavailable):  # it has happened; who follows the store sees it later
            await self._services.directory.refresh()


def _has_body(request: Request) -> bool:
    length = request.headers.get("content-length", "0")
    return length != "0" or "transfer-encoding" in request.headers


def _account_id(request: Request) -> str:
    account_id: str = request.path_params["account_id"]
    return account_id


def _key_id(request: Request) -> str:
    key_id: str = request.path_params["key_id"]
    return key_id


def _page_size(request: Request) -> int:
    return page_limit(
        request.query_params.get("limit"), default=_DEFAULT_PAGE, largest=_LARGEST_PAGE
    )


def _json(value: dict[str, Any]) -> Response:
    return Response(wire_json.encode(value), media_type="application/json")


def _secret(value: dict[str, Any]) -> Response:
    """Nobody on the way is to keep it."""
    response = _json(value)
    response.headers["cache-control"] = "no-store"
    return response
