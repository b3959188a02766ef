"""The input file of a batch, on the side of whoever submits it: checked, and turned into a body.

The check reads with the service's own reader, so it finds what the service would refuse, at once
and with line numbers; which models there are it cannot know.

For message batches a line is `{"custom_id", "params"}`. A line of an OpenAI batch will do as well:
its `body` becomes `params`, byte for byte.

Source: wire reference of the batch APIs, "Input line" and "Anthropic message batches".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from ingress.batch.input_check import (
    DUPLICATE_CUSTOM_ID,
    EMPTY_FILE,
    MAX_ERRORS,
    TOO_MANY_REQUESTS,
    Finding,
    InputCheck,
    UsedIds,
)
from ingress.batch.lines import InputLine, LineReader, parse_line
from ingress.batch.message_requests import CUSTOM_ID, MAX_REQUESTS
from schemas.batch import LineError

MESSAGES: Final = "/v1/messages"
_PIECE_BYTES: Final = 1 << 20


def check_input(path: Path, endpoint: str) -> Finding:
    """Read a file as the service would.

    Raises:
        OSError: It cannot be read.
    """
    if endpoint == MESSAGES:
        return _check_messages(path)
    check = InputCheck(endpoint=endpoint, model_of=str)
    with path.open("rb") as file:
        while not check.done and (piece := file.read(_PIECE_BYTES)):
            check.feed(piece)
    return check.end()


def endpoint_of(path: Path) -> str | None:
    """The endpoint that the first request of a file is for; None if it does not say."""
    for _, text in _lines(path):
        try:
            line: Any = msgspec.json.decode(text or b"")
        except msgspec.DecodeError:
            return None
        if not isinstance(line, dict):
            return None
        if "params" in line:
            return MESSAGES
        url = line.get("url")
        return url if isinstance(url, str) else None
    return None


def size_of(path: Path) -> int:
    """In bytes."""
    return path.stat().st_size


async def message_batch_body(path: Path) -> AsyncIterator[bytes]:
    """The body that makes a message batch of a file, one request in memory at a time."""
    before = b'{"requests":['
    async for request in message_requests(path):
        yield before + request
        before = b",\n"
    yield b"]}" if before == b",\n" else b'{"requests":[]}'


async def message_requests(path: Path) -> AsyncIterator[bytes]:
    """The requests of a message batch."""
    for _, text in _lines(path):
        yield _message_request(text or b"")


async def content(path: Path) -> AsyncIterator[bytes]:
    """A file in pieces."""
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    reader = LineReader()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield from reader.feed(piece)
    yield from reader.end()


class _Members(msgspec.Struct):
    custom_id: msgspec.Raw
    body: msgspec.Raw
    params: msgspec.Raw = msgspec.Raw()


def _message_request(text: bytes) -> bytes:
    """A line as a request of a message batch; as it is, if it is none of an OpenAI batch."""
    try:
        line = msgspec.json.decode(text, type=_Members)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return text
    if bytes(line.params):
        return text
    return b'{"custom_id":%b,"params":%b}' % (bytes(line.custom_id), bytes(line.body))


def _check_messages(path: Path) -> Finding:
    used = UsedIds()
    errors: list[LineError] = []
    models: set[object] = set()
    total = 0
    for number, text in _lines(path):
        total += 1
        if total > MAX_REQUESTS:
            message = f"A batch may have {MAX_REQUESTS} requests."
            errors.append(LineError(code=TOO_MANY_REQUESTS, message=message, line=number))
            break
        found = _check_request(number, text, used)
        if isinstance(found, LineError):
            errors.append(found)
            if len(errors) >= MAX_ERRORS:
                break
        else:
            models.add(found.body.get("model"))
    if not total:
        errors.append(LineError(code=EMPTY_FILE, message="The file has no request."))
    model = models.pop() if len(models) == 1 else None
    return Finding(
        total=total, model=model if isinstance(model, str) else None, errors=tuple(errors)
    )


def _check_request(number: int, text: bytes | None, used: UsedIds) -> InputLine | LineError:
    request = None if text is None else _message_request(text)
    line = parse_line(number, request, shape="messages", endpoint=MESSAGES)
    if isinstance(line, LineError):
        return line
    if not CUSTOM_ID.fullmatch(line.custom_id):
        return LineError(
            code="unsupported_value",
            message="`custom_id` must have 1 to 64 characters of A-Z, a-z, 0-9, `_` and `-`.",
            param="custom_id",
            line=number,
        )
    before = used.first(line.custom_id, number)
    if before is not None:
        return LineError(
            code=DUPLICATE_CUSTOM_ID,
            message=f"Line {before} has the same `custom_id`.",
            param="custom_id",
            line=number,
        )
    return line
