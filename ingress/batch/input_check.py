"""Whether an input can be a batch: every mistake with its line number, in one pass.

Bytes go in as they come, the findings come out at the end. A custom id is remembered by a digest,
so memory is bounded by the number of requests and not by what they say. It knows no store, no clock
and no catalogue: who uses it says which models there are.

Source: wire reference of the batch APIs, "Validation errors" and the limits of files and batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

import msgspec

from ingress.batch.lines import LineReader, parse_line
from schemas.batch import LineError, Shape
from schemas.errors import RequestError

MAX_REQUESTS: Final = 50_000
MAX_INPUT_BYTES: Final = 200_000_000
MAX_ERRORS: Final = 100
"""Reading ends with so many: whoever made the file knows by then."""

DUPLICATE_CUSTOM_ID: Final = "duplicate_custom_id"
EMPTY_FILE: Final = "empty_file"
FILE_TOO_LARGE: Final = "file_too_large"
TOO_MANY_REQUESTS: Final = "too_many_requests_in_batch"


class InputLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much an input may be."""

    requests: int = MAX_REQUESTS
    size: int = MAX_INPUT_BYTES
    errors: int = MAX_ERRORS


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What the check of an input found.

    Attributes:
        total: Requests, the bad ones included.
        model: The id of the model that all of them ask for; None if they differ.
        errors: By line; none if the input is sound.
    """

    total: int
    model: str | None
    errors: tuple[LineError, ...]


class UsedIds:
    """The custom ids seen so far."""

    def __init__(self) -> None:
        self._first: dict[bytes, int] = {}

    def first(self, custom_id: str, at: int) -> int | None:
        """Where it was seen before; None if it was not, and then it is remembered as seen here."""
        digest = hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16)
        before = self._first.setdefault(digest.digest(), at)
        return None if before == at else before


class InputCheck:
    """Checks the input of an OpenAI batch while it is read.

    Message batches are checked as their requests come in, and need this no more.

    Args:
        shape: Of the batch.
        endpoint: That every line must be for.
        model_of: The id of a model by what a line calls it. A `RequestError` that it raises, such
            as `ModelNotFound` and `EndpointNotSupported`, is a finding of that line; anything else
            passes through `feed`, and this check is of no further use.
        limits: How much there may be.
    """

    def __init__(
        self,
        *,
        shape: Shape = "openai",
        endpoint: str,
        model_of: Callable[[str], str],
        limits: InputLimits = InputLimits(),  # noqa: B008 - frozen
    ) -> None:
        self._shape: Shape = shape
        self._endpoint = endpoint
        self._model_of = model_of
        self._limits = limits
        self._reader = LineReader()
        self._used = UsedIds()
        self._models: dict[str, str] = {}
        self._errors: list[LineError] = []
        self._size = 0
        self._total = 0
        self.done = False
        """Nothing that follows can change the finding; whoever reads may stop."""

    def feed(self, piece: bytes) -> None:
        """The next bytes of the input."""
        if self.done:
            return
        self._size += len(piece)
        if self._size > self._limits.size:
            self._stop(FILE_TOO_LARGE, f"The file is larger than {self._limits.size} bytes.")
            return
        self._check_lines(self._reader.feed(piece))

    def end(self) -> Finding:
        """What was found. Called once, after all pieces."""
        if not self.done:
            self._check_lines(self._reader.end())
        if not self._total and not self._errors:
            self._stop(EMPTY_FILE, "The file has no request.")
        models = set(self._models.values())
        return Finding(
            total=self._total,
            model=models.pop() if len(models) == 1 else None,
            errors=tuple(self._errors),
        )

    def _check_lines(self, lines: list[tuple[int, bytes | None]]) -> None:
        for number, text in lines:
            if self.done:
                return
            self._total += 1
            if self._total > self._limits.requests:
                most = self._limits.requests
                self._stop(TOO_MANY_REQUESTS, f"A batch may have {most} requests.", line=number)
                return
            error = self._check_line(number, text)
            if error is not None:
                self._errors.append(error)
                self.done = len(self._errors) >= self._limits.errors

    def _check_line(self, number: int, text: bytes | None) -> LineError | None:
        line = parse_line(number, text, shape=self._shape, endpoint=self._endpoint)
        if isinstance(line, LineError):
            return line
        before = self._used.first(line.custom_id, number)
        if before is not None:
            return LineError(
                code=DUPLICATE_CUSTOM_ID,
                message=f"Line {before} has the same `custom_id`.",
                param="custom_id",
                line=number,
            )
        return self._check_model(number, line.body.get("model"))

    def _check_model(self, number: int, name: object) -> LineError | None:
        if not isinstance(name, str) or name in self._models:
            return None
        try:
            self._models[name] = self._model_of(name)
        except RequestError as error:
            return LineError(
                code=error.code, message=error.message, param="body.model", line=number
            )
        return None

    def _stop(self, code: str, message: str, line: int | None = None) -> None:
        self._errors.append(LineError(code=code, message=message, line=line))
        self.done = True
