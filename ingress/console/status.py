"""How one process stands, as plain values: what it shows to a console, and tells to other pods.

There is nothing in them of what is asked or answered, and no key.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from schemas.job import JobClass

STATUS_VERSION: Final = 1

MOST_REQUESTS: Final = 150
"""Requests that one process tells of; of more it tells the number."""

Process: TypeAlias = Literal["ingress", "batcher"]


class UnknownStatus(ValueError):
    """It is not of this version, or no status at all."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request under way.

    Attributes:
        id: The request's, as its client was told.
        account: Whose it is; None where there are no accounts.
        phase: See `Generation.phase`.
        age_s: Since it arrived.
        waits_s: Since it last began to wait for a worker, if it does.
        ttft_s: Until its first token, if that has come.
        input_tokens: Of its prompt; 0 until a worker has read it.
        output_tokens: So far.
        attempt: How many workers it took.
    """

    id: str
    dialect: str
    model: str
    job_class: JobClass
    account: str | None
    stream: bool
    zdr: bool
    phase: str
    age_s: float
    waits_s: float | None
    ttft_s: float | None
    input_tokens: int
    output_tokens: int
    worker: str | None
    attempt: int


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """What waits for a worker of a model, of one class.

    Attributes:
        oldest_s: How long the one has waited that has waited longest.
        rate: Requests per second that workers take out of a queue that stands; None if unknown.
    """

    model: str
    job_class: JobClass
    count: int
    oldest_s: float
    rate: float | None = None


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of all requests since the process began, those under way included."""

    model: str
    job_class: JobClass
    input: int
    output: int


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one process that a worker has."""

    worker: str
    live: int
    batch: int


class FirstToken(msgspec.Struct, frozen=True):
    """How long a request waited for its first token.

    Attributes:
        at: When it came, in Unix seconds.
    """

    id: str
    at: float
    seconds: float
    model: str


class ErrorSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One answer that was an error."""

    at: float
    request_id: str
    dialect: str
    model: str | None
    account: str | None


class Errors(msgspec.Struct, frozen=True, kw_only=True):
    """The errors of one code.

    Attributes:
        count: In the last ten minutes.
        last: Some of them, the newest first.
    """

    code: str
    status: int
    count: int
    last: tuple[ErrorSeen, ...]


class LimitUse(msgspec.Struct, frozen=True, kw_only=True):
    """How far one limit of an account is used.

    Attributes:
        kind: `concurrency`, `requests`, `tokens` or `budget`.
        unit: Of the figures.
        used: Over all processes.
    """

    kind: str
    unit: str
    used: float
    limit: float


class AccountUse(msgspec.Struct, frozen=True, kw_only=True):
    """An account that is near one of its limits, or was refused something.

    Attributes:
        refused: Requests in the last ten minutes, by this process.
    """

    account: str
    name: str
    refused: int
    uses: tuple[LimitUse, ...]


class PodStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One process.

    Attributes:
        pod: Its name, which no other has.
        at: When this was so, in Unix seconds.
        blocked: The broker takes nothing.
        omitted: Requests under way that are not among `requests`.
    """

    version: int = STATUS_VERSION
    pod: str
    process: Process
    release: str
    at: float
    started_at: float
    connected: bool
    blocked: bool
    shutting_down: bool
    in_flight: int
    requests: tuple[Request, ...]
    omitted: int
    waiting: tuple[Waiting, ...]
    held: tuple[Held, ...]
    tokens: tuple[Tokens, ...]
    first_tokens: tuple[FirstToken, ...]
    errors: tuple[Errors, ...]
    accounts: tuple[AccountUse, ...]


class _Version(msgspec.Struct, frozen=True):
    version: int


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(PodStatus)
_version = msgspec.json.Decoder(_Version)


def encode_status(status: PodStatus) -> bytes:
    return _encoder.encode(status)


def decode_status(body: bytes) -> PodStatus:
    """Read what another process tells.

    Raises:
        UnknownStatus: It is of another version, or no status.
    """
    try:
        if _version.decode(body).version != STATUS_VERSION:
            raise UnknownStatus("another version")
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnknownStatus(type(error).__name__) from None
