"""Answers that are kept in the blob store, for whoever asks again while the window lasts.

A blob has all of an answer: a line of JSON with its status and headers, then its body. Each request
has one place of its own, so that what a killed process left there is replaced or deleted with its
record, and nothing has to be looked for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec
from starlette.types import Message

from ingress.idempotency.key import KeyedRequest
from ingress.idempotency.recording import Recording, Room
from schemas.blobs.base import BlobMissing, BlobStore, BlobStoreUnavailable
from schemas.blobs.orphans import ANSWERS

_OF_ONE_REQUEST: Final = (b"ratelimit", b"retry-after")
"""Headers that tell how the account stood when the answer was made."""


class _Head(msgspec.Struct, frozen=True):
    status: int
    headers: tuple[tuple[str, str], ...]
    request_id: str


class KeptAnswers:
    """Writes, reads and deletes them."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    async def keep(self, request: KeyedRequest, answer: Recording, request_id: str) -> None:
        """Keep an answer that has ended and is whole.

        Raises:
            BlobStoreUnavailable: It is not kept.
        """
        assert answer.start is not None
        head = _Head(
            answer.start["status"],
            tuple((name.decode(), value.decode()) for name, value in lasting(answer.start)),
            request_id,
        )
        line = msgspec.json.encode(head) + b"\n"
        await self._blobs.write(_place(request.key), _pieces(line, answer.body))

    async def read(self, key: bytes) -> tuple[Recording, str] | None:
        """The kept answer of a key and the id of its request; None if it cannot be had."""
        try:
            data = await self._blobs.get(_place(key))
        except (BlobMissing, BlobStoreUnavailable):
            return None
        line, _, body = data.partition(b"\n")
        head = msgspec.json.decode(line, type=_Head)
        answer = Recording(Room(0), max_bytes=len(body))
        headers = [(name.encode(), value.encode()) for name, value in head.headers]
        await answer.send(
            {"type": "http.response.start", "status": head.status, "headers": headers}
        )
        await answer.send({"type": "http.response.body", "body": body})
        return answer, head.request_id

    async def delete(self, key: bytes) -> None:
        """Delete the answer of a key, if there is one.

        Raises:
            BlobStoreUnavailable: It may still be there.
        """
        await self._blobs.delete(_place(key))


def _place(key: bytes) -> str:
    return f"{ANSWERS}/{key.hex()}"


def lasting(start: Message) -> Sequence[tuple[bytes, bytes]]:
    """The headers of an answer that are true for everybody who gets it."""
    return [
        (name, value)
        for name, value in start["headers"]
        if not any(part in name.lower() for part in _OF_ONE_REQUEST)
    ]


async def _pieces(head: bytes, body: Sequence[bytes]) -> AsyncIterator[bytes]:
    yield head
    for piece in body:
        yield piece
