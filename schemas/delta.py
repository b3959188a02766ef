"""Deltas: the neutral events of a reply.

`schemas.reply` says which may follow which. Splitting or merging text Deltas never changes an
answer. Values are immutable and encode as arrays, so that a delta costs little on the wire.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, TypeAlias

import msgspec

from schemas.errors import ErrorInfo


class FinishReason(StrEnum):
    """Why a choice ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"
    CANCELLED = "cancelled"


class Usage(msgspec.Struct, frozen=True, array_like=True):
    """Tokens of one request, all choices together.

    Attributes:
        input_tokens: Prompt tokens, cached ones included, counted once.
        cached_tokens: Prompt tokens found in the prefix cache.
        output_tokens: Generated tokens, reasoning included.
        reasoning_tokens: Those of them returned as reasoning.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


class TopLogprob(msgspec.Struct, frozen=True, array_like=True):
    """An alternative at one position. `token` is its text, with U+FFFD for partial characters."""

    token_id: int
    token: str
    token_bytes: bytes
    logprob: float


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """The sampled token at one position and its best alternatives, most likely first.

    Attributes:
        asked: The tokens that the caller asked about, in the caller's order.
    """

    token_id: int
    token: str
    token_bytes: bytes
    logprob: float
    top: tuple[TopLogprob, ...] = ()
    asked: tuple[TopLogprob, ...] = ()


class PromptLogprob(msgspec.Struct, frozen=True, array_like=True):
    """As `TokenLogprob`, of a token of the prompt; the first has no log probability."""

    token_id: int
    token: str
    token_bytes: bytes
    logprob: float | None
    top: tuple[TopLogprob, ...] = ()
    asked: tuple[TopLogprob, ...] = ()


class Accepted(msgspec.Struct, frozen=True, array_like=True, tag="accepted"):
    """A worker has taken the Job and its engine is about to run it.

    Everything that can be refused before generation has been checked by now, except what only the
    engine finds.

    Attributes:
        alone: Of a suspect: if the worker dies before its first new token, it was this one, since
            no other suspect was begun beside it. That may change: then it is said again, in an
            `ALIVE` message.
    """

    worker: str
    input_tokens: int
    alone: bool = True


class Started(msgspec.Struct, frozen=True, array_like=True, tag="started"):
    """The prompt has been read; generation begins.

    Attributes:
        cached_tokens: Prompt tokens found in the prefix cache.
    """

    worker: str
    input_tokens: int
    cached_tokens: int


class PromptDelta(msgspec.Struct, frozen=True, array_like=True, tag="prompt"):
    """The prompt of a choice, as far as it was asked for; before all else of the choice.

    Long prompts come in several.
    """

    choice: int
    text: str
    logprobs: tuple[PromptLogprob, ...] = ()


class TokensDelta(msgspec.Struct, frozen=True, array_like=True, tag="ids"):
    """Ids that were sampled, where they were asked for; their text comes with or after them."""

    choice: int
    token_ids: tuple[int, ...]


class InternalsDelta(msgspec.Struct, frozen=True, array_like=True, tag="internals"):
    """What was asked for of the model's inside, at the end of a choice.

    Attributes:
        hidden_states: As the engine gives them: one vector, or one per token.
        routed_experts: Base64 of the engine's own array.
    """

    choice: int
    hidden_states: list[Any] | None = None
    routed_experts: str | None = None


class TextDelta(msgspec.Struct, frozen=True, array_like=True, tag="text"):
    """Answer text. `logprobs` are those of the tokens that this text completes."""

    choice: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class ReasoningDelta(msgspec.Struct, frozen=True, array_like=True, tag="reasoning"):
    """Reasoning text."""

    choice: int
    text: str


class ToolCallStarted(msgspec.Struct, frozen=True, array_like=True, tag="tool"):
    """A tool call begins. `call` counts the calls of this choice from 0."""

    choice: int
    call: int
    name: str


class ArgumentsDelta(msgspec.Struct, frozen=True, array_like=True, tag="arguments"):
    """A fragment of the open call's argument JSON."""

    choice: int
    call: int
    text: str


class Finished(msgspec.Struct, frozen=True, array_like=True, tag="finished"):
    """A choice has ended.

    Attributes:
        matched: The stop string, or the caller's stop token id, that ended it; None for the
            model's natural end.
    """

    choice: int
    reason: FinishReason
    matched: str | int | None = None


class Completed(msgspec.Struct, frozen=True, array_like=True, tag="completed"):
    """The reply is complete: every choice has finished."""

    usage: Usage


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The reply ends in an error. `usage` is what had been produced until then."""

    error: ErrorInfo
    usage: Usage = Usage()


class Counted(msgspec.Struct, frozen=True, array_like=True, tag="counted"):
    """The whole reply to a Job that only counts.

    Attributes:
        input_tokens: Prompt tokens; None if this worker cannot tell exactly.
    """

    worker: str
    input_tokens: int | None


class Interrupted(msgspec.Struct, frozen=True, array_like=True, tag="interrupted"):
    """This attempt will not go on; its owner may dispatch the next one.

    Attributes:
        reason: `redelivered`: the worker that had it is gone, or was taken from the broker.
            `engine_lost`: the worker's engine died or hangs. `draining`: the worker is leaving.
            `unreadable`: the worker cannot reach the store that the Job lies in. `yielded`: it is
            batch work and made room for a live request.
            The first two may be the Job's own fault.
    """

    reason: Literal["redelivered", "engine_lost", "draining", "unreadable", "yielded"]


Delta: TypeAlias = (
    Accepted
    | Started
    | PromptDelta
    | TokensDelta
    | InternalsDelta
    | TextDelta
    | ReasoningDelta
    | ToolCallStarted
    | ArgumentsDelta
    | Finished
    | Completed
    | Failed
    | Counted
    | Interrupted
)


SpokenDelta: TypeAlias = TextDelta | ReasoningDelta | ArgumentsDelta
"""A piece of what a model says."""


OUT_OF_BAND = -1
"""`seq` of a message from a worker that does not run the attempt: it got the Job again although
another worker has, or had, it. It says `Interrupted` and stands outside the attempt's order."""

ALIVE = -2
"""`seq` of a message out of the attempt's order: the attempt is in a worker's hands, and the worker
is well. It comes about once a second while there is nothing else to say, and when it is asked for.
It has no Deltas, but for an `Accepted` that tells a suspect's owner that it is not alone any more.
"""


class ReplyMessage(msgspec.Struct, frozen=True, array_like=True):
    """A run of Deltas of one attempt.

    Attributes:
        seq: Starts at 0 for each attempt and has no gaps; or `OUT_OF_BAND`, or `ALIVE`.
        token_ids: Pairs of (choice, raw ids sampled since the last message), so that whoever holds
            a reply's prefix can have another worker continue it.
    """

    job_id: str
    attempt: int
    seq: int
    deltas: tuple[Delta, ...]
    token_ids: tuple[tuple[int, tuple[int, ...]], ...] = ()
