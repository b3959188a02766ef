"""A Job: one normalised generation request, the unit on the broker.

A Job holds all a worker needs and nothing of the dialect it came from.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from schemas.message import Message, ToolChoice, ToolSpec
from schemas.sampling import SamplingParams

SCHEMA_VERSION = 1
"""Version of Job and reply messages. A reader refuses any other with a clear error."""

JobClass: TypeAlias = Literal["interactive", "batch", "count"]
"""`count` Jobs generate nothing: they ask how many tokens their prompt has."""

Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Reasoning(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much the model thinks before it answers.

    Attributes:
        effort: One of the model card's efforts; `none` is off; None on models that do not reason.
        visible: Whether reasoning text is part of the reply. When False it is parsed off and
            dropped, and counts as output but not as reasoning.
    """

    effort: Effort | None = None
    visible: bool = True

    @property
    def enabled(self) -> bool:
        return self.effort is not None and self.effort != "none"


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="chat"):
    """A conversation, rendered by the worker with the model's chat template.

    Its output is parsed: reasoning and tool calls are split from the text.

    Attributes:
        template_options: Extra variables for the chat template, from the client.
        continue_last: The last message is the assistant's and unfinished: the answer goes on from
            its text. All output is then answer, for no reasoning can begin in the middle of it.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    reasoning: Reasoning = Reasoning()
    template_options: dict[str, Any] = {}
    continue_last: bool = False


class TokenPrompt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="tokens"):
    """One or several prompts of token ids, answered side by side. Their output is raw text.

    Attributes:
        prompts: Each (prompt_len,) token ids.
        echo: The text of the prompt comes before the answer.
    """

    prompts: tuple[tuple[int, ...], ...]
    echo: bool = False


Prompt: TypeAlias = ChatPrompt | TokenPrompt


class ChoicePrefix(msgspec.Struct, frozen=True, array_like=True):
    """What of one choice has been generated and has reached the owner of the reply.

    Attributes:
        token_ids: The raw ids sampled so far, in order.
        units: How much of what an output parser makes of them has arrived; see
            `schemas.continuation`.
        prompt_parts: How many `PromptDelta`s have arrived.
        finished: Its `Finished` has arrived, and nothing of it is missing.
    """

    token_ids: tuple[int, ...] = ()
    units: int = 0
    prompt_parts: int = 0
    finished: bool = False


class Continuation(msgspec.Struct, frozen=True, kw_only=True):
    """What earlier attempts of this Job already produced; the next one goes on after it.

    Attributes:
        choices: One per choice of the Job, in order.
    """

    choices: tuple[ChoicePrefix, ...]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One generation request.

    Attributes:
        job_id: Unique for the request, the same for all its attempts.
        attempt: Which dispatch of the Job this is, from 1.
        request_id: For correlation in logs only.
        model: The served model's id in catalogue spelling.
        deadline: Unix time in seconds after which nobody waits for the reply.
        queue_deadline: Unix time in seconds after which it must not be started any more.
        continuation: What earlier attempts produced; None for a fresh start.
        suspect: A worker was lost while it ran this Job, so it may be the reason. Workers start
            suspects one after the other; a second loss then names the culprit and nobody else.
        exclusive: It was lost again, but beside another suspect, which may have been the reason. So
            now no other one is started until it has shown that it does no harm.
        zdr: Nothing of its prompt and its reply may be kept anywhere, for however short a time: not
            in a store, not on a broker's disk, not in a log.
        traceparent: Where this attempt belongs in a trace, as W3C Trace Context writes it; unset
            where nobody traces.
    """

    version: int = SCHEMA_VERSION
    job_id: str
    attempt: int = 1
    request_id: str = ""
    model: str
    job_class: JobClass = "interactive"
    prompt: Prompt
    sampling: SamplingParams
    created_at: float
    deadline: float
    queue_deadline: float
    continuation: Continuation | None = None
    suspect: bool = False
    exclusive: bool = False
    zdr: bool = False
    traceparent: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def choices(self) -> int:
        """How many choices the reply has; choice `p * n + k` is the `k`-th of prompt `p`."""
        prompts = len(self.prompt.prompts) if isinstance(self.prompt, TokenPrompt) else 1
        return prompts * self.sampling.n
