"""A connection to a service, from outside: its batch APIs, and nothing of how they are shown.

It uses aiohttp, which the service needs anyway: the clients that the providers publish would be one
more dependency each, and httpx carries large bodies at several times the cost.

What did not arrive for want of a connection is tried again where that cannot do harm: reading,
cancelling, and creating under an idempotency key.

Source: wire reference of the batch APIs.
"""

from __future__ import annotations

import asyncio
import io
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp
import msgspec
import orjson

from ingress.client.view import shape_of

T = TypeVar("T")

_CONNECT_S: Final = 10.0
_SILENCE_S: Final = 60.0
_STORING_S: Final = 600.0
"""How long a service may take over a body that has been sent."""

_PAUSES_S: Final = (0.2, 0.8)
"""Before each further try of what did not arrive."""

_LONGEST_RETRY_AFTER_S: Final = 30.0
_PIECE_BYTES: Final = 1 << 18

Body = dict[str, Any]


class ClientError(Exception):
    """It did not work; the text says why, for the person who asked."""


class Refused(ClientError):
    """The service answered with an error."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Transient(ClientError):
    """The same may work in a moment: the service cannot be reached, or says so."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Page(msgspec.Struct, frozen=True):
    """A part of a list, newest first."""

    items: list[Body]
    more: bool


class Connection:
    """The batch APIs of one service, under one key."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    # --- Batches ----------------------------------------------------------------------------------

    async def create(self, file_id: str, endpoint: str, metadata: Mapping[str, str]) -> Body:
        """Make a batch of an uploaded file."""
        body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h"}
        if metadata:
            body["metadata"] = dict(metadata)  # type: ignore[assignment]
        headers = {"Idempotency-Key": secrets.token_hex(16)}
        return await _tried(lambda: self._json("POST", "/v1/batches", json=body, headers=headers))

    async def create_messages(self, pieces: Callable[[], AsyncIterator[bytes]]) -> Body:
        """Make a message batch.

        Args:
            pieces: Its body, anew for every try.
        """
        headers = {
            "Idempotency-Key": secrets.token_hex(16),
            "Content-Type": "application/json",
        }
        return await _tried(
            lambda: self._json(
                "POST",
                "/v1/messages/batches",
                data=pieces(),
                headers=headers,
                silence_s=_STORING_S,
            )
        )

    async def batch(self, batch_id: str) -> Body:
        return await _tried(lambda: self.batch_now(batch_id))

    async def batch_now(self, batch_id: str) -> Body:
        """The same in one try.

        Raises:
            Transient: Another one may do.
        """
        return await self._json("GET", _path(batch_id))

    async def cancel(self, batch_id: str) -> Body:
        return await _tried(lambda: self._json("POST", f"{_path(batch_id)}/cancel"))

    async def batches(self, path: str, limit: int) -> Page:
        """The newest ones of one API, by its path."""
        query = {"limit": str(limit)}
        body = await _tried(lambda: self._json("GET", path, params=query))
        return Page(body["data"], body["has_more"])

    # --- Files ------------------------------------------------------------------------------------

    async def upload(self, path: Path, on_sent: Callable[[int], None]) -> Body:
        """Upload the input of a batch.

        Args:
            path: Of the file.
            on_sent: Told how many bytes have been sent, from any thread.
        """
        return await _tried(lambda: self._upload(path, on_sent))

    async def _upload(self, path: Path, on_sent: Callable[[int], None]) -> Body:
        with _Counted(path, on_sent) as file:
            form = aiohttp.FormData()
            form.add_field("purpose", "batch")
            form.add_field("file", file, filename=path.name, content_type="application/jsonl")
            return await self._json("POST", "/v1/files", data=form, silence_s=_STORING_S)

    async def files(self, limit: int) -> Page:
        query = {"limit": str(limit)}
        body = await _tried(lambda: self._json("GET", "/v1/files", params=query))
        return Page(body["data"], body["has_more"])

    async def delete_file(self, file_id: str) -> Body:
        return await _tried(lambda: self._json("DELETE", f"/v1/files/{file_id}"))

    # --- Results ----------------------------------------------------------------------------------

    def file_content(self, file_id: str) -> AsyncIterator[bytes]:
        return self._download(f"/v1/files/{file_id}/content")

    def message_results(self, batch_id: str) -> AsyncIterator[bytes]:
        return self._download(f"{_path(batch_id)}/results")

    async def _download(self, path: str) -> AsyncIterator[bytes]:
        """What lies at a path, in pieces; a connection that breaks is made again."""
        had = 0
        broken = 0
        while True:
            skip = had
            try:
                async with self._answer("GET", path) as answer:
                    async for piece in answer.content.iter_chunked(_PIECE_BYTES):
                        new = piece[skip:]
                        skip -= min(skip, len(piece))
                        if new:
                            had += len(new)
                            broken = 0
                            yield new
                    return
            except Transient as error:
                if broken == len(_PAUSES_S):
                    raise
                await asyncio.sleep(max(_PAUSES_S[broken], error.retry_after_s))
                broken += 1

    # --- HTTP -------------------------------------------------------------------------------------

    async def _json(self, method: str, path: str, **request: Any) -> Body:
        async with self._answer(method, path, **request) as answer:
            raw = await answer.read()
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError:
            body = None
        if not isinstance(body, dict):
            raise ClientError(f"What answers at {self._url} is not a service of this kind.")
        return body

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, *, silence_s: float = _SILENCE_S, **request: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A good answer.

        Raises:
            Transient: None was to be had now, or the block could not read it.
            Refused: The service said no.
        """
        timeout = aiohttp.ClientTimeout(sock_connect=_CONNECT_S, sock_read=silence_s)
        try:
            async with self._session.request(
                method, self._url + path, timeout=timeout, **request
            ) as answer:
                if not answer.ok:
                    raise _refusal(answer, await answer.read())
                yield answer
        except TimeoutError:
            raise Transient(f"The service at {self._url} does not answer.") from None
        except (aiohttp.InvalidURL, ValueError):
            raise ClientError(f"{self._url} is not the URL of a service.") from None
        except aiohttp.ClientError as error:
            why = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
            raise Transient(f"The service at {self._url} cannot be reached{why}.") from None


@asynccontextmanager
async def connected(url: str, key: str | None) -> AsyncIterator[Connection]:
    """A connection to the service at a URL, with or without its `/v1`, while the block runs."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(
        headers=headers, trust_env=True, timeout=aiohttp.ClientTimeout(total=None)
    ) as session:
        yield Connection(session, url.rstrip("/").removesuffix("/v1"))


class _Counted(io.BufferedReader):
    """A file that tells how far it has been read."""

    def __init__(self, path: Path, on_read: Callable[[int], None]) -> None:
        super().__init__(io.FileIO(path))
        self._on_read = on_read

    def read(self, size: int | None = -1, /) -> bytes:
        piece = super().read(size)
        self._on_read(self.tell())
        return piece


async def _tried(work: Callable[[], Awaitable[T]]) -> T:
    """The outcome of work that may be done again, after some tries."""
    for pause_s in _PAUSES_S:
        try:
            return await work()
        except Transient as error:
            await asyncio.sleep(max(pause_s, error.retry_after_s))
    return await work()


def _path(batch_id: str) -> str:
    folder = "/v1/messages/batches" if shape_of(batch_id) == "messages" else "/v1/batches"
    return f"{folder}/{batch_id}"


def _refusal(answer: aiohttp.ClientResponse, raw: bytes) -> ClientError:
    status = answer.status
    try:
        message = orjson.loads(raw)["error"]["message"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = f"The service answered with HTTP {status}."
    may_pass = status in (408, 500, 502, 503, 504, 529) or (
        status == 429 and answer.headers.get("x-should-retry") != "false"
    )
    if not may_pass:
        return Refused(message, status)
    try:
        after_s = float(answer.headers.get("Retry-After", "0"))
    except ValueError:
        after_s = 0.0
    return Transient(message, min(after_s, _LONGEST_RETRY_AFTER_S))
