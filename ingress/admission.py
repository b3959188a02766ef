"""The decision to accept a request now, and reading its body within bounds.

A refused request never holds a slot. The slot is given back exactly once.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request

from schemas.errors import (
    ClientClosedRequest,
    InvalidJson,
    ModelOverloaded,
    ModelZdrNotSupported,
    RequestBodyTimeout,
    RequestTooLarge,
    ServerShuttingDown,
    UnsupportedMediaType,
)
from schemas.model_card import ModelCard

MAX_DEPTH = 128
"""Nesting of JSON values. Tool schemas in use stay below 30; deeper ones only exhaust stacks."""


class Slot:
    """The right to run one request."""

    __slots__ = ("_admission", "_held")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._held = True

    def release(self) -> None:
        """Give it back. Idempotent."""
        if self._held:
            self._held = False
            self._admission.in_flight -= 1


class Admission:
    """Counts the requests in flight in this process."""

    def __init__(self, *, max_concurrent: int) -> None:
        self._max_concurrent = max_concurrent
        self.in_flight = 0
        self.shutting_down = False

    def check_open(self) -> None:
        """Refuse what comes too late.

        Raises:
            ServerShuttingDown: This process takes no more requests.
        """
        if self.shutting_down:
            raise ServerShuttingDown("The server is shutting down; try again.")

    def acquire(self) -> Slot:
        """A slot.

        Raises:
            ServerShuttingDown: This process takes no more requests.
            ModelOverloaded: It has too many.
        """
        self.check_open()
        if self.in_flight >= self._max_concurrent:
            raise ModelOverloaded("Too many requests are in flight; try again shortly.")
        self.in_flight += 1
        return Slot(self)


def check_zdr(request: Request, card: ModelCard) -> None:
    """Refuse what asks for more secrecy than the model offers.

    Raises:
        ModelZdrNotSupported: Zero data retention is required and the model does not have it.
    """
    required = request.headers.get("wafer-zdr", "").strip().lower() == "required"
    if required and not card.zdr_supported:
        raise ModelZdrNotSupported(
            "This model does not support zero data retention.", param="model"
        )


async def read_json(request: Request, *, max_bytes: int, idle_s: float) -> Any:
    """The body as decoded JSON.

    Raises:
        RequestTooLarge: `max_bytes` or more; found from the length header before reading any.
        UnsupportedMediaType: It says that it is something else.
        RequestBodyTimeout: Nothing came for `idle_s` seconds.
        InvalidJson: Not JSON, or nested too deeply.
        ClientClosedRequest: The client left during the upload.
    """
    too_large = RequestTooLarge(f"The request body must be under {max_bytes} bytes.")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) >= max_bytes:
        raise too_large
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type and media_type != "application/json" and not media_type.endswith("+json"):
        raise UnsupportedMediaType("The request body must be sent as application/json.")
    chunks: list[bytes] = []
    size = 0
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(idle_s):
                chunk = await anext(stream, None)
        except TimeoutError:
            raise RequestBodyTimeout("The request body did not arrive in time.") from None
        except ClientDisconnect:
            raise ClientClosedRequest("The client went away.") from None
        if chunk is None:
            return decode_json(b"".join(chunks))
        size += len(chunk)
        if size >= max_bytes:
            raise too_large
        chunks.append(chunk)


def decode_json(body: bytes) -> Any:
    """Strict JSON: UTF-8, no NaN, no lone surrogates, bounded depth.

    Raises:
        InvalidJson: It is not.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        # The parser's text may quote the input.
        raise InvalidJson("The request body is not valid JSON.") from None
    # The walk costs; few brackets cannot nest deeply.
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH:
        _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
    raise InvalidJson(f"The request body nests deeper than {MAX_DEPTH} levels.")
