"""The decision to accept a request now, and reading its body within bounds.

A refused request never holds a slot. The slot is given back exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from starlette.requests import Request

from ingress.accounts.account import Account
from ingress.backlog import Backlog, Overload, Place
from ingress.generation import Phase
from ingress.request_body import body_pieces, check_uncompressed, media_type_of
from ingress.strict_json import decode_json
from schemas.errors import (
    ModelZdrNotSupported,
    RequestTooLarge,
    ServerShuttingDown,
    UnsupportedMediaType,
)
from schemas.model_card import ModelCard


class Slot:
    """The right to run one request, and its place among those that wait for a worker."""

    __slots__ = ("_admission", "_held", "_place")

    def __init__(self, admission: Admission, place: Place) -> None:
        self._admission = admission
        self._place = place
        self._held = True

    def follow(self, phase: Phase) -> None:
        """The request has entered a phase."""
        match phase:
            case "queued":
                self._place.take()
            case "prefill" | "decode":
                self._place.leave(accepted=True)

    def release(self) -> None:
        """Give it back. Idempotent."""
        if self._held:
            self._held = False
            self._place.leave(accepted=False)
            self._admission.in_flight -= 1


class Admission:
    """Counts the requests in flight in this process, and those of each model that wait.

    Args:
        open_backlog: Makes the Backlog of a model.

    Attributes:
        backlogs: By model.
    """

    def __init__(self, *, max_concurrent: int, open_backlog: Callable[[str], Backlog]) -> None:
        self._max_concurrent = max_concurrent
        self._open_backlog = open_backlog
        self.backlogs: dict[str, Backlog] = {}
        self.in_flight = 0
        self.shutting_down = False

    def backlog(self, model: str) -> Backlog:
        """What waits for a model that exists."""
        if model not in self.backlogs:
            self.backlogs[model] = self._open_backlog(model)
        return self.backlogs[model]

    def check_open(self) -> None:
        """Refuse what comes too late.

        Raises:
            ServerShuttingDown: This process takes no more requests.
        """
        if self.shutting_down:
            raise ServerShuttingDown("The server is shutting down; try again.")

    def admit(self, model: str, *, tokens: int, free_slots: int) -> Slot:
        """A slot for a request of `tokens` prompt tokens, about, where workers have `free_slots`.

        Raises:
            ServerShuttingDown: This process takes no more requests.
            ModelOverloaded: It has too many, or too many wait for this model.
        """
        self.check_open()
        backlog = self.backlog(model)
        if self.in_flight >= self._max_concurrent:
            raise Overload(
                "Too many requests are in flight; try again shortly.",
                reason="concurrency",
                retry_after_s=None,
            )
        backlog.check(tokens, free_slots=free_slots)
        self.in_flight += 1
        return Slot(self, Place(backlog, tokens))


def check_length(request: Request, *, max_bytes: int) -> None:
    """Refuses a body that is too large by its own account; nothing of it has been read.

    Raises:
        RequestTooLarge: `max_bytes` or more.
    """
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) >= max_bytes:
        raise too_large(max_bytes)


def asks_zdr(request: Request) -> bool:
    """Whether the request requires zero data retention by its header."""
    return request.headers.get("wafer-zdr", "").strip().lower() == "required"


def require_zdr(request: Request, terms: Account, card: ModelCard) -> bool:
    """Whether nothing of the request may be kept, by its header or by its account.

    Raises:
        ModelZdrNotSupported: It may not, and the model does not have that.
    """
    required = terms.always_zdr or asks_zdr(request)
    if required and not card.zdr_supported:
        raise ModelZdrNotSupported(
            "This model does not support zero data retention.", param="model"
        )
    return required


async def read_json(request: Request, *, max_bytes: int, idle_s: float, upload_s: float) -> Any:
    """The body as decoded JSON.

    Raises:
        RequestTooLarge: `max_bytes` or more.
        UnsupportedMediaType: It says that it is something else, or compressed.
        RequestBodyTimeout: Nothing came for `idle_s` seconds, or not all within `upload_s`.
        InvalidJson: Not JSON, or nested too deeply.
        ClientClosedRequest: The client left during the upload.
    """
    check_json(request)
    pieces: list[bytes] = []
    size = 0
    async with aclosing(body_pieces(request, idle_s=idle_s, upload_s=upload_s)) as body:
        async for piece in body:
            size += len(piece)
            if size >= max_bytes:
                raise too_large(max_bytes)
            pieces.append(piece)
    return decode_json(b"".join(pieces))


def check_json(request: Request) -> None:
    """Refuses a body that says that it is something else than JSON, or compressed.

    Raises:
        UnsupportedMediaType: It does.
    """
    media_type = media_type_of(request)
    if media_type and media_type != "application/json" and not media_type.endswith("+json"):
        raise UnsupportedMediaType("The request body must be sent as application/json.")
    check_uncompressed(request)


def too_large(max_bytes: int) -> RequestTooLarge:
    """The error for a body of `max_bytes` or more."""
    return RequestTooLarge(f"The request body must be under {max_bytes} bytes.")
