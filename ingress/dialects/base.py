"""What a dialect is: the one place where a public API's words meet the neutral ones.

A dialect parses a body into its own typed request, normalises that to a Job, and encodes Deltas
back. An encoder is a synchronous state machine, the same for a stream, a whole answer and a batch
line; ids and clock arrive in the `Stamp`. Dialects import no web framework and no transport, and
none knows of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import msgspec

from ingress.dialects.api import ApiDescription
from ingress.dialects.profile import WAFER, Profile
from ingress.limits.standing import Standing
from schemas.delta import Delta, Usage
from schemas.errors import ErrorInfo
from schemas.job import Job
from schemas.model_card import ModelCard

Frame: TypeAlias = bytes
"""One complete SSE record, ready for the socket."""


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an encoder may not make up itself.

    Attributes:
        response_id: 32 hex characters; further ids of the answer derive from it.
        created: Unix seconds.
        model: The model's id in catalogue spelling.
        request_id: As in the `x-request-id` header.
        profile: Of the deployment.
        clock: Gives Unix seconds, for dialects that say when an answer was complete; without it
            they leave that open.
    """

    response_id: str
    created: int
    model: str
    request_id: str
    profile: Profile = WAFER
    clock: Callable[[], float] | None = None


class JobContext(msgspec.Struct, frozen=True, kw_only=True):
    """What normalising adds to a request: identity and clock, from outside.

    Attributes:
        now, deadline, queue_deadline: Unix seconds.
        priorities: The lowest and highest that the caller may ask for; None leaves it to the model.
    """

    job_id: str
    request_id: str
    now: float
    deadline: float
    queue_deadline: float
    profile: Profile = WAFER
    priorities: tuple[int, int] | None = None


class Normalised(msgspec.Struct, frozen=True, kw_only=True):
    """A Job, and what of the request is not in it.

    Attributes:
        ignored: Fields that the request set and that have no effect, by path. They are named in
            the response header `x-headrace-ignored`.
    """

    job: Job
    ignored: tuple[str, ...] = ()


class DialectRequest(Protocol):
    """The least every dialect's typed body has."""

    @property
    def model(self) -> str: ...

    @property
    def stream(self) -> bool: ...


class Encoder(Protocol):
    """Deltas of one reply to one dialect."""

    def open(self) -> Sequence[Frame]:
        """The records a stream begins with. Called once, when the status line is settled."""
        ...

    def feed(self, delta: Delta) -> Sequence[Frame]:
        """The records a Delta becomes, possibly none. After `Completed` the stream is whole."""
        ...

    def fail(self, error: ErrorInfo, usage: Usage | None = None) -> Sequence[Frame]:
        """Closes what is open, then tells. The stream must not look like a success.

        Args:
            error: What went wrong.
            usage: Tokens until then, for dialects that tell them; None or zeros if unknown.
        """
        ...

    def keep_alive(self) -> Sequence[Frame]:
        """What to write after a silence."""
        ...

    def body(self) -> bytes:
        """The complete answer, once `Completed` was fed."""
        ...


class Dialect(Protocol):
    """One public API shape.

    Attributes:
        name: `chat`, `responses`, `messages`, `completions`.
        path: Its route. Errors on it, and on everything below it, have this dialect's shape.
        api: How it describes itself.
    """

    name: ClassVar[str]
    path: ClassVar[str]
    api: ClassVar[ApiDescription]

    def parse(self, body: Any) -> DialectRequest:
        """Typed request from decoded JSON.

        Raises:
            RequestError: Wrong shape; `param` names the field.
        """
        ...

    def normalise(self, request: Any, card: ModelCard, context: JobContext) -> Normalised:
        """The Job a request means for a model. Its images are still links.

        Raises:
            RequestError: The model cannot do what is asked.
        """
        ...

    def encoder(self, request: Any, job: Job, stamp: Stamp) -> Encoder: ...

    def error_body(self, error: ErrorInfo, request_id: str) -> bytes: ...

    def error_status(self, error: ErrorInfo) -> int: ...

    def limit_headers(self, standings: Sequence[Standing]) -> Sequence[tuple[bytes, bytes]]:
        """Headers that tell how the caller's account stands with its limits."""
        ...


@runtime_checkable
class CountingDialect(Dialect, Protocol):
    """A dialect that also counts the tokens of a prompt.

    Attributes:
        count_path: The route of counting.
        count_api: How counting describes itself.
    """

    count_path: ClassVar[str]
    count_api: ClassVar[ApiDescription]

    def parse_count(self, body: Any) -> DialectRequest:
        """Typed request from decoded JSON; as `parse`, but without what only generating needs.

        Raises:
            RequestError: Wrong shape; `param` names the field.
        """
        ...

    def count_body(self, input_tokens: int) -> bytes:
        """The answer to a request to count."""
        ...
