"""Whether an answer is what it would have been, had nothing happened.

Every request was answered before, unharmed and under the same load; an answer under injury must
come to the same transcript, byte for byte, with the same usage. Nothing else counts as whole.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from tests.chaos.asks import Ask
from tests.chaos.load import Heard
from tests.chaos.transcript import Transcript, read

Outcome: TypeAlias = Literal[
    "same",
    "valid",
    "different",
    "invalid",
    "failed",
    "refused",
    "cut",
    "orphaned",
    "broken",
    "hung",
    "left",
]
"""`same`: whole and as unharmed. `valid`: whole, and by chance another. `different`: looks whole,
and is not the same. `invalid`: breaks its constraint or its usage. `failed`: says that it failed.
`refused`: said so before it began. `cut`: ended without a word. `orphaned`: the same, when its
ingress was killed. `broken`: no valid answer at all. `hung`: did not end. `left`: the client went
away on purpose."""

OUTCOMES: tuple[Outcome, ...] = Outcome.__args__  # type: ignore[attr-defined]

WRONG: frozenset[Outcome] = frozenset({"different", "invalid", "broken", "hung"})
"""What no injury excuses."""

_REFUSED = (429, 503, 529)
_SHOWN = 8
"""Of every outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One answer's outcome, and why."""

    ask: str
    outcome: Outcome
    detail: str


@dataclass(slots=True)
class Baseline:
    """The unharmed answers, by the request's name.

    Attributes:
        dropped: Requests whose unharmed answers were not all alike, and so prove nothing.
    """

    transcripts: dict[str, Transcript] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    silences_s: list[float] = field(default_factory=list)

    def add(self, heard: Heard) -> None:
        """Take one unharmed answer."""
        ask = heard.ask
        if ask.name in self.dropped:
            return
        try:
            transcript = _transcript(heard)
            assert transcript.failed is None, f"failed: {transcript.failed}"
            check(ask, transcript)
        except Exception as error:
            raise UnharmedAnswerWrong(f"{ask.name}: {error!r}: {heard.body[-400:]!r}") from error
        if ask.flows:
            self.silences_s.append(heard.silence_s)
        known = self.transcripts.setdefault(ask.name, transcript)
        if ask.exact and known != transcript:
            self.dropped[ask.name] = difference(known, transcript)
            del self.transcripts[ask.name]


class UnharmedAnswerWrong(Exception):
    """Without any injury an answer was already wrong: there is nothing to compare with."""


def judge(heard: Heard, baseline: Baseline) -> Judged:
    """What has become of a request."""
    ask = heard.ask

    def judged(outcome: Outcome, detail: str = "") -> Judged:
        return Judged(ask=ask.name, outcome=outcome, detail=detail)

    if heard.left:
        return judged("left")
    if heard.hung:
        return judged("hung", f"status {heard.status}, {len(heard.arrivals)} pieces")
    if heard.cut:
        return judged("cut", f"status {heard.status}, {len(heard.arrivals)} pieces")
    try:
        transcript = _transcript(heard)
    except Exception as error:
        return judged("broken", f"{error!r}: {heard.body[-200:]!r}")
    if transcript.failed is not None:
        if heard.status in _REFUSED:
            return judged("refused", f"{heard.status} {transcript.failed}")
        began = baseline.transcripts.get(ask.name)
        if ask.exact and began and not _begins(began.content, transcript.content):
            return judged("different", "what came before the failure is not how it begins")
        return judged("failed", f"{heard.status} {transcript.failed}")
    return judged(*_compared(ask, transcript, baseline.transcripts[ask.name]))


def _compared(ask: Ask, transcript: Transcript, known: Transcript) -> tuple[Outcome, str]:
    """Of an answer that says that it is whole."""
    try:
        check(ask, transcript)
    except Exception as error:
        return "invalid", f"{error!r}: {transcript.content}"[:400]
    if transcript == known:
        return "same", ""
    if ask.exact:
        return "different", difference(known, transcript)
    if _prompt_tokens(transcript.usage) != _prompt_tokens(known.usage):
        return "invalid", difference(known.usage, transcript.usage)
    return "valid", ""


def check(ask: Ask, transcript: Transcript) -> None:
    """Whether a whole answer obeys its request by itself.

    Raises:
        AssertionError: It does not.
    """
    cut_short = {"length", "max_tokens"} & set(transcript.ends)
    usage = transcript.usage
    tokens = usage.get("completion_tokens", usage.get("output_tokens"))
    if ask.limit is not None:
        assert tokens <= ask.limit, f"{tokens} tokens, {ask.limit} allowed"
        if cut_short and len(set(transcript.ends)) == 1:
            assert tokens == ask.limit, f"cut at {tokens} tokens, not at {ask.limit}"
    if isinstance(transcript.content, list):
        told = sum(len(choice["tokens"]) for choice in transcript.content)
        # A token that only ends a choice is counted, and is no part of what was said.
        ended = transcript.ends.count("stop")
        assert told == 0 or tokens - ended <= told <= tokens, (
            f"{told} log probabilities of {tokens} tokens"
        )
    if not cut_short:
        assert ask.holds(transcript), "the constraint does not hold"


def _transcript(heard: Heard) -> Transcript:
    assert heard.status is not None
    return read(heard.ask.dialect, stream=heard.ask.stream, status=heard.status, body=heard.body)


def _prompt_tokens(usage: Any) -> Any:
    return usage.get("prompt_tokens", usage.get("input_tokens"))


def _begins(whole: Any, part: Any) -> bool:
    """Whether all that was said of a failed answer is the beginning of the whole one."""
    if part is None:
        return True
    if isinstance(part, str):
        return isinstance(whole, str) and whole.startswith(part)
    if isinstance(part, dict):
        return all(
            name in ("end", "parts", "tokens") or _begins(whole[name], value)
            for name, value in part.items()
        )
    if isinstance(part, list):
        return len(part) <= len(whole) and all(
            _begins(a, b) for a, b in zip(whole, part, strict=False)
        )
    return bool(whole == part)


def difference(expected: Any, got: Any, path: str = "") -> str:
    """Where two values begin to differ, in words."""
    if type(expected) is type(got):
        if isinstance(expected, tuple | list) and len(expected) == len(got):
            for number, (a, b) in enumerate(zip(expected, got, strict=True)):
                if a != b:
                    return difference(a, b, f"{path}[{number}]")
        if isinstance(expected, dict) and expected.keys() == got.keys():
            for name, value in expected.items():
                if value != got[name]:
                    return difference(value, got[name], f"{path}.{name}")
        if isinstance(expected, str):
            at = next(
                (i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b),
                min(len(expected), len(got)),
            )
            start = max(0, at - 20)
            return (
                f"{path} at character {at}: expected {expected[start : at + 40]!r}, "
                f"got {got[start : at + 40]!r} (lengths {len(expected)} and {len(got)})"
            )
    return f"{path}: expected {expected!r}, got {got!r}"[:400]


class Tally:
    """Counts outcomes, and keeps the first examples of what went wrong."""

    def __init__(self) -> None:
        self.outcomes: Counter[Outcome] = Counter()
        self.kinds: dict[str, Counter[Outcome]] = {}
        self.reasons: Counter[str] = Counter()
        self.examples: dict[Outcome, list[Judged]] = {}

    def add(self, judged: Judged) -> None:
        self.outcomes[judged.outcome] += 1
        kind = judged.ask.partition("#")[0]
        self.kinds.setdefault(kind, Counter())[judged.outcome] += 1
        if judged.outcome in ("failed", "refused"):
            self.reasons[f"{judged.outcome}: {judged.detail}"] += 1
        unharmed = ("same", "valid", "left", "orphaned")
        examples = self.examples.setdefault(judged.outcome, [])
        if judged.outcome not in unharmed and len(examples) < _SHOWN:
            examples.append(judged)

    def told(self) -> list[str]:
        """The examples, a line each."""
        return [
            f"{judged.ask}: {judged.outcome}: {judged.detail}"
            for examples in self.examples.values()
            for judged in examples
        ]

    def total(self, *outcomes: Outcome) -> int:
        return sum(self.outcomes[outcome] for outcome in outcomes)
