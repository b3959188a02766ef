"""Files as clients see them, and what clients may ask for; no clock, no web, no store.

Source: wire reference of the batch APIs, "Files".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal
from urllib.parse import quote

import msgspec

from ingress.stores.base import Page
from schemas.batch import FilePurpose, StoredFile
from schemas.errors import FileNotFound, SchemaValidationFailed, UnsupportedValue

DEFAULT_EXPIRY_S: Final = 30 * 24 * 3600
SHORTEST_EXPIRY_S: Final = 3600
LONGEST_EXPIRY_S: Final = 30 * 24 * 3600
LARGEST_PAGE: Final = 10_000

FILE_ID: Final = re.compile(r"file-[0-9a-f]{24}")
_DIGITS: Final = re.compile(r"[0-9]{1,9}")


def file_object(file: StoredFile) -> dict[str, Any]:
    """What every answer shows of a file."""
    return {
        "id": file.file_id,
        "object": "file",
        "bytes": file.size,
        "created_at": file.created_at,
        "expires_at": file.expires_at,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }


def file_list(page: Page[StoredFile]) -> dict[str, Any]:
    """A page of files."""
    return {
        "object": "list",
        "data": [file_object(file) for file in page.items],
        "first_id": page.items[0].file_id if page.items else None,
        "last_id": page.items[-1].file_id if page.items else None,
        "has_more": page.more,
    }


def deleted_file(file_id: str) -> dict[str, Any]:
    """What a client is told whose file is gone."""
    return {"id": file_id, "object": "file", "deleted": True}


def file_not_found() -> FileNotFound:
    """The error for a file that is not there, or not for this client."""
    return FileNotFound("There is no such file.", param="file_id")


def attachment(filename: str) -> str:
    """The header that gives a downloaded file its name, in ASCII, whatever the name is.

    Source: RFC 6266, appendix D; RFC 8187.
    """
    plain = re.sub(r'[^ -~]|["\\%]', "_", filename)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(filename, safe='')}"


class FileQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which files a client wants listed."""

    limit: int = LARGEST_PAGE
    purpose: FilePurpose | None = None
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None


def file_query(parameters: Mapping[str, str]) -> FileQuery:
    """What the query of a URL asks for.

    Raises:
        UnsupportedValue: No such list can be given.
    """
    return FileQuery(
        limit=_limit(parameters.get("limit")),
        purpose=_listed_purpose(parameters.get("purpose")),
        order=_order(parameters.get("order", "desc")),
        after=_after(parameters.get("after")),
    )


def unknown_after() -> UnsupportedValue:
    """The error for a list that should go on from a file that is not there."""
    return UnsupportedValue("`after` must be the id of one of your files.", param="after")


def _limit(text: str | None) -> int:
    if text is None:
        return LARGEST_PAGE
    limit = int(text) if _DIGITS.fullmatch(text) else 0
    if not 1 <= limit <= LARGEST_PAGE:
        raise UnsupportedValue(f"`limit` must be from 1 to {LARGEST_PAGE}.", param="limit")
    return limit


def _listed_purpose(text: str | None) -> FilePurpose | None:
    match text:
        case None | "batch" | "batch_output":
            return text
    raise UnsupportedValue("`purpose` must be `batch` or `batch_output`.", param="purpose")


def _order(text: str) -> Literal["asc", "desc"]:
    match text:
        case "asc" | "desc":
            return text
    raise UnsupportedValue("`order` must be `asc` or `desc`.", param="order")


def _after(text: str | None) -> str | None:
    if text is not None and not FILE_ID.fullmatch(text):
        raise unknown_after()
    return text


class UploadFields:
    """The fields of an upload, each checked when it comes; they may come in any order."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def take(self, name: str, value: str) -> None:
        """One of the fields. Those that mean nothing here have no effect.

        Raises:
            RequestError: It cannot be honoured.
        """
        if name not in ("purpose", "expires_after", _ANCHOR, _SECONDS):
            return
        if name in self._values:
            raise SchemaValidationFailed(f"The form has the field `{name}` twice.", param=name)
        self._values[name] = value
        if name == "purpose" and value != "batch":
            raise UnsupportedValue("`purpose` must be `batch`.", param="purpose")
        if name == "expires_after":
            raise SchemaValidationFailed(
                f"`expires_after` must be sent as the two fields `{_ANCHOR}` and `{_SECONDS}`.",
                param="expires_after",
            )
        if name == _ANCHOR and value != "created_at":
            raise UnsupportedValue(f"`{_ANCHOR}` must be `created_at`.", param=_ANCHOR)
        if name == _SECONDS:
            _expiry_s(value)

    def expiry_s(self) -> int:
        """All have come: how long after its creation the file expires.

        Raises:
            SchemaValidationFailed: One is missing.
        """
        if "purpose" not in self._values:
            raise SchemaValidationFailed("The form must have the field `purpose`.", param="purpose")
        for name, other in ((_ANCHOR, _SECONDS), (_SECONDS, _ANCHOR)):
            if name in self._values and other not in self._values:
                raise SchemaValidationFailed(f"`{name}` needs `{other}` beside it.", param=other)
        seconds = self._values.get(_SECONDS)
        return DEFAULT_EXPIRY_S if seconds is None else _expiry_s(seconds)


_ANCHOR: Final = "expires_after[anchor]"
_SECONDS: Final = "expires_after[seconds]"


def _expiry_s(text: str) -> int:
    if not _DIGITS.fullmatch(text):
        raise SchemaValidationFailed(f"`{_SECONDS}` must be a whole number.", param=_SECONDS)
    seconds = int(text)
    if not SHORTEST_EXPIRY_S <= seconds <= LONGEST_EXPIRY_S:
        raise UnsupportedValue(
            f"`{_SECONDS}` must be from {SHORTEST_EXPIRY_S} to {LONGEST_EXPIRY_S}.", param=_SECONDS
        )
    return seconds
