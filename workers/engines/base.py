"""The engine protocol: what a token generator takes and yields.

An engine runs one *choice* at a time; `workers.run` starts `n` of them and merges what they yield.
There are two kinds: most generate token ids and raw text (reasoning and tool calls still inside),
from prompt ids that `workers.render` made; some are whole chat servers of their own, take the
conversation and yield Deltas already split. `Engine.takes_token_ids` says which.

An engine must never put prompt or output text into an exception or a log line.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol, runtime_checkable

import msgspec

from schemas.delta import (
    ArgumentsDelta,
    PromptLogprob,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallStarted,
)
from schemas.job import Job
from schemas.model_card import ModelCard
from schemas.sampling import Constraint


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of one attempt.

    Attributes:
        engine_request_id: Unique per attempt and choice; the handle for `abort`.
        job: The whole Job, for engines that take conversations.
        choice: Which of the Job's choices this is, from 0; see `Job.choices`.
        prompt_ids: (prompt_len,) token ids of this choice's prompt; empty for engines that do not
            take them.
        max_tokens: Tokens to generate at most, already fitted to the window.
        stop_strings: Stop strings the engine itself must honour, keeping them in its text; empty
            when they are looked for after parsing.
        reasoning_open: The prompt ends inside an open reasoning part.
        constraint: What restricts all of the output, reasoning included; see `workers.constraint`.
            None for engines that take conversations.
    """

    engine_request_id: str
    job: Job
    choice: int = 0
    prompt_ids: tuple[int, ...] = ()
    max_tokens: int = 1
    stop_strings: tuple[str, ...] = ()
    reasoning_open: bool = False
    constraint: Constraint | None = None


class EngineFinish(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine ended a choice.

    Attributes:
        reason: `tool_calls` only from engines that split their own output; `abort` when the
            request was aborted, whoever did it.
        matched: The stop string or stop token id that ended it; None for the natural end.
    """

    reason: str
    matched: str | int | None = None


class EngineChunk(msgspec.Struct, frozen=True, kw_only=True):
    """What one step of the engine adds to a choice. All fields are increments, never totals.

    Attributes:
        text: Raw text, to go through the output parser; never half a character.
        token_ids: Ids sampled in this step. Their text may come with a later chunk.
        logprobs: One per token id when asked for.
        prompt_logprobs: One per prompt token from the position asked for; on the first chunk.
        deltas: Output already split, from engines that do not take token ids.
        output_tokens: Tokens this chunk accounts for; equals `len(token_ids)` where ids are known.
            Where an engine had to estimate, its last chunk puts the sum right and may be negative.
        input_tokens: Total prompt tokens as the engine counts them (a total, on any chunk);
            None where it did not say.
        cached_tokens: Prompt tokens found in the prefix cache (a total); None as above.
        reasoning_tokens: Reasoning tokens (a total) where the engine counts them itself.
        hidden_states: On the last chunk, when asked for: one vector, or one per token.
        routed_experts: On the last chunk, when asked for: base64 of the engine's own array.
        finish: Set on the last chunk of the choice.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[PromptLogprob, ...] = ()
    deltas: tuple[TextDelta | ReasoningDelta | ToolCallStarted | ArgumentsDelta, ...] = ()
    output_tokens: int = 0
    input_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    hidden_states: list[Any] | None = None
    routed_experts: str | None = None
    finish: EngineFinish | None = None


class Tokenizer(Protocol):
    """What rendering needs of a model's tokenizer.

    Attributes:
        template: The chat template, which shows how the model writes tool calls.
    """

    template: str

    def render_chat(self, job: Job) -> tuple[tuple[int, ...], bool]:
        """Apply the model's chat template to `job.prompt`.

        Returns:
            (prompt_len,) token ids, and whether the prompt ends inside an open reasoning part.

        Raises:
            RequestError: The template refuses the conversation.
        """
        ...

    def decode(
        self,
        token_ids: tuple[int, ...],
        *,
        skip_special_tokens: bool | None = None,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """Text of ids, as the engine would stream it.

        Special tokens are skipped as the model's conversations need it, unless it is said.
        """
        ...


class Engine(Protocol):
    """A token generator.

    Attributes:
        name: `sglang`, `upstream`, `scripted`.
        takes_token_ids: Whether `EngineRequest.prompt_ids` is needed.
        template_stop_strings: Stop strings that belong to the model's chat template and mean its
            natural end, such as the next speaker's label; valid after `start`.
    """

    name: str
    takes_token_ids: bool
    template_stop_strings: tuple[str, ...]

    async def start(self) -> None:
        """Load the model; returns when it can answer. May take minutes."""
        ...

    @property
    def card(self) -> ModelCard:
        """Facts of the loaded model; valid after `start`."""
        ...

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None for engines that do not take token ids; valid after `start`."""
        ...

    @property
    def slots(self) -> int:
        """Requests it runs at once; more are queued inside it."""
        ...

    async def check(self, request: EngineRequest) -> None:
        """Refuse what can be refused without generating. May take seconds.

        Raises:
            RequestError: The engine cannot run the request (bad grammar, too long).
        """
        ...

    def generate(self, request: EngineRequest) -> AsyncIterator[EngineChunk]:
        """Run one choice. The last chunk has `finish`.

        Raises:
            RequestError: The engine refuses the request (bad grammar, too long).
            GenerationFailed: The engine failed it.
        """
        ...

    async def abort(self, engine_request_id: str) -> None:
        """Stop a request and free its slot and cache. Unknown ids are ignored."""
        ...

    async def running(self) -> int:
        """Requests inside the engine now, queued ones included, as the engine itself counts."""
        ...

    async def stop(self) -> None: ...


@runtime_checkable
class SeeingEngine(Engine, Protocol):
    """An engine that makes more tokens of a prompt with images than rendering did."""

    def prompt_tokens(self, job: Job, prompt_ids: tuple[int, ...]) -> int | None:
        """How long a rendered prompt is with its images. CPU work: milliseconds per image.

        Returns:
            None if that is known only once the engine has run it.

        Raises:
            RequestError: The images cannot be part of this prompt.
        """
        ...
