"""How a reply goes on after its worker was lost: what has arrived, and what is still to be sent.

The owner of a reply keeps, per choice, the ids sampled so far and how much of their parsed output
has arrived. The worker of the next attempt runs those ids through the parser once more, which puts
it into the very state that the lost one was in, and leaves out what has arrived.

How much has arrived is counted in *units*: a character of text, reasoning or arguments is one, the
start of a tool call is one. Splitting or merging text never changes an answer, so neither does it
change the units; what differs between two workers is only when a parser lets text go.

Where a choice ends is not counted: its `Finished` comes in one message with its last ids.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from schemas.delta import (
    ArgumentsDelta,
    Delta,
    Finished,
    PromptDelta,
    ReasoningDelta,
    ReplyMessage,
    TextDelta,
    ToolCallStarted,
)
from schemas.job import ChoicePrefix, Continuation, Job


class Arrived:
    """The owner's side: what has arrived of every choice."""

    __slots__ = ("_finished", "_ids", "_prompt_parts", "_units")

    def __init__(self, choices: int) -> None:
        self._ids = [array("I") for _ in range(choices)]
        self._units = [0] * choices
        self._prompt_parts = [0] * choices
        self._finished = [False] * choices

    @property
    def tokens(self) -> int:
        """Ids of all choices together."""
        return sum(map(len, self._ids))

    def add_ids(self, message: ReplyMessage) -> None:
        """Take the ids of a message that belongs to the reply."""
        for choice, token_ids in message.token_ids:
            self._ids[choice].extend(token_ids)

    def add(self, delta: Delta) -> None:
        """Take a Delta of such a message."""
        match delta:
            case TextDelta() | ReasoningDelta() | ArgumentsDelta():
                self._units[delta.choice] += len(delta.text)
            case ToolCallStarted():
                self._units[delta.choice] += 1
            case PromptDelta():
                self._prompt_parts[delta.choice] += 1
            case Finished():
                self._finished[delta.choice] = True

    def continuation(self, job: Job) -> Continuation | None:
        """How the next attempt can go on; None if it must begin afresh.

        A worker that does not tell ids cannot be continued, and neither can what an engine reports
        of a whole choice at its end, or code of the caller's own that has seen every token.
        """
        options = job.sampling.engine
        if options.hidden_states or options.routed_experts or options.logit_processor:
            return None
        for token_ids, units, finished in zip(self._ids, self._units, self._finished, strict=True):
            if (units or finished) and not token_ids:
                return None
        if not self.tokens and not any(self._prompt_parts):
            return None
        return Continuation(
            choices=tuple(
                ChoicePrefix(tuple(token_ids), units, prompt_parts, finished)
                for token_ids, units, prompt_parts, finished in zip(
                    self._ids, self._units, self._prompt_parts, self._finished, strict=True
                )
            )
        )


class Remaining:
    """The worker's side: leaves out of one choice's Deltas what has arrived.

    Log probabilities stay with the rest of a Delta that is cut: those of text that has arrived were
    sent with it, and a replayed chunk has none.
    """

    __slots__ = ("_prompt_parts", "_units")

    def __init__(self, prefix: ChoicePrefix) -> None:
        self._units = prefix.units
        self._prompt_parts = prefix.prompt_parts

    def of(self, deltas: Sequence[Delta]) -> Sequence[Delta]:
        """What of the next Deltas is still to be sent."""
        if not self._units:
            return deltas
        kept: list[Delta] = []
        for delta in deltas:
            match delta:
                case TextDelta(choice=choice, text=text, logprobs=logprobs):
                    if (rest := self._cut(text)) or logprobs:
                        kept.append(TextDelta(choice, rest, logprobs))
                case ReasoningDelta(choice=choice, text=text):
                    if rest := self._cut(text):
                        kept.append(ReasoningDelta(choice, rest))
                case ArgumentsDelta(choice=choice, call=call, text=text):
                    if rest := self._cut(text):
                        kept.append(ArgumentsDelta(choice, call, rest))
                case ToolCallStarted() if self._units:
                    self._units -= 1
                case _:
                    kept.append(delta)
        return kept

    def prompt_part(self) -> bool:
        """Whether the next `PromptDelta` is still to be sent."""
        if self._prompt_parts:
            self._prompt_parts -= 1
            return False
        return True

    def _cut(self, text: str) -> str:
        rest = text[self._units :]
        self._units -= len(text) - len(rest)
        return rest
