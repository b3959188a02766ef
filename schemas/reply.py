"""The grammar of a reply: which Delta may follow which.

    attempt := Failed | Interrupted | Counted
             | Accepted (Failed | Interrupted | Started event* end)
    event   := PromptDelta | TextDelta | ReasoningDelta | ToolCallStarted | ArgumentsDelta
             | TokensDelta | InternalsDelta | Finished
    end     := Completed | Failed | Interrupted
    choice  := PromptDelta* (ReasoningDelta | TextDelta | ToolCallStarted ArgumentsDelta*)* Finished

After the prompt of a choice, `TokensDelta` and `InternalsDelta` may stand anywhere in it.
Nothing follows an end. `Counted` answers a Job that only counts and no other. A call's identity
precedes its arguments, calls are numbered from 0 in order, and arguments follow the call they
belong to. Every choice finishes before `Completed`.

A reply is one attempt, or several: attempt n+1 begins after attempt n was interrupted. It begins
the choices afresh, or goes on with them where what has arrived of them ends; then a call's
arguments may follow at once, and a choice that has finished stays so.

An attempt that its owner has cancelled ends too, in `Failed` unless it had come to its end before:
so the owner learns what was generated until then, if it still listens.

The owner of a reply numbers attempts; `SequenceChecker` refuses messages out of order,
`ReplyChecker` Deltas out of grammar. Both are pure.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, assert_never

from schemas.delta import (
    Accepted,
    ArgumentsDelta,
    Completed,
    Counted,
    Delta,
    Failed,
    Finished,
    InternalsDelta,
    Interrupted,
    PromptDelta,
    ReasoningDelta,
    ReplyMessage,
    SpokenDelta,
    Started,
    TextDelta,
    TokensDelta,
    ToolCallStarted,
)
from schemas.errors import ProtocolViolation

State: TypeAlias = Literal["idle", "accepted", "started", "ended"]


class MessagesMissing(ProtocolViolation):
    """Messages of an attempt have been lost on the way."""


class ReplyChecker:
    """Walks a reply's Deltas and raises `ProtocolViolation` at the first illegal one.

    Args:
        choices: How many choices the Job asked for; 0 if it only counts.
    """

    __slots__ = ("_begun", "_calls", "_choices", "_finished", "_in_call", "state")

    def __init__(self, choices: int) -> None:
        self._choices = choices
        self.begin_attempt(continued=False)

    def begin_attempt(self, *, continued: bool) -> None:
        """The next Deltas are another attempt's.

        Args:
            continued: It goes on with the choices; else it begins them anew.
        """
        self.state: State = "idle"
        if continued:
            return
        choices = self._choices
        self._finished: set[int] = set()
        self._begun = [False] * choices
        self._calls = [0] * choices
        self._in_call = [False] * choices

    def feed(self, delta: Delta) -> None:
        """Take the next Delta.

        Raises:
            ProtocolViolation: The Delta may not stand here.
        """
        match delta:
            case TextDelta() | ReasoningDelta():
                self._say(delta.choice, delta)
                self._in_call[delta.choice] = False
            case TokensDelta() | InternalsDelta():
                self._say(delta.choice, delta)
            case PromptDelta():
                self._require_open(delta.choice, delta)
                self._require(not self._begun[delta.choice], delta)
            case ToolCallStarted():
                self._say(delta.choice, delta)
                self._require(delta.call == self._calls[delta.choice], delta)
                self._calls[delta.choice] += 1
                self._in_call[delta.choice] = True
            case ArgumentsDelta():
                self._say(delta.choice, delta)
                self._require(
                    self._in_call[delta.choice] and delta.call == self._calls[delta.choice] - 1,
                    delta,
                )
            case Finished():
                self._say(delta.choice, delta)
                self._finished.add(delta.choice)
            case Accepted():
                self._require(self.state == "idle" and self._choices > 0, delta)
                self.state = "accepted"
            case Started():
                self._require(self.state == "accepted", delta)
                self.state = "started"
            case Completed():
                self._require(
                    self.state == "started" and len(self._finished) == self._choices, delta
                )
                self.state = "ended"
            case Counted():
                self._require(self.state == "idle" and not self._choices, delta)
                self.state = "ended"
            case Failed() | Interrupted():
                self._require(self.state != "ended", delta)
                self.state = "ended"
            case _ as unreachable:
                assert_never(unreachable)

    def passes(self, delta: SpokenDelta) -> bool:
        """Take the next Delta if it may stand here; else nothing has changed, and `feed` tells."""
        choice = delta.choice
        if self.state != "started" or not 0 <= choice < self._choices or choice in self._finished:
            return False
        if type(delta) is ArgumentsDelta:
            return self._in_call[choice] and delta.call == self._calls[choice] - 1
        self._begun[choice] = True
        self._in_call[choice] = False
        return True

    def _say(self, choice: int, delta: Delta) -> None:
        self._require_open(choice, delta)
        self._begun[choice] = True

    def _require_open(self, choice: int, delta: Delta) -> None:
        self._require(
            self.state == "started"
            and 0 <= choice < self._choices
            and choice not in self._finished,
            delta,
        )

    def _require(self, legal: bool, delta: Delta) -> None:
        if not legal:
            raise ProtocolViolation(
                "The reply from the model could not be understood.",
                diagnostic=f"{type(delta).__name__} in state {self.state}",
            )


class SequenceChecker:
    """Accepts the messages of the current attempt in order, drops stale ones, refuses gaps."""

    __slots__ = ("attempt", "next_seq")

    def __init__(self, attempt: int = 1) -> None:
        self.attempt = attempt
        self.next_seq = 0

    def accept(self, message: ReplyMessage) -> bool:
        """Whether the message belongs to the current attempt and is the next of it.

        Returns:
            False for a message of an earlier attempt or one already seen, which is to be ignored.

        Raises:
            MessagesMissing: A message is missing before this one.
        """
        if message.attempt < self.attempt or (
            message.attempt == self.attempt and message.seq < self.next_seq
        ):
            return False
        if message.attempt > self.attempt or message.seq != self.next_seq:
            raise MessagesMissing(
                "Part of the reply from the model was lost.",
                diagnostic=(
                    f"expected {self.attempt}/{self.next_seq}, got {message.attempt}/{message.seq}"
                ),
            )
        self.next_seq += 1
        return True

    def begin_attempt(self, attempt: int) -> None:
        """From now on only messages of `attempt` count."""
        self.attempt = attempt
        self.next_seq = 0
