"""What the service is to reach, and whether a run says that it does. Pure.

A bound is a value, or so much of the best of others in the same run. The engine runs in the
service's own worker and is part of its figures; of the figures of those it is compared with it is
none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.peers.figures import FIGURES, Figure, Record, rows, written

_BY_NAME: Final = {(figure.measure, figure.name): figure for figure in FIGURES}
_ROUTERS: Final = ("vllm-router", "sglang-router", "smg")


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure of one target, and its bound.

    Attributes:
        bound: A value; with `others`, times the best of theirs.
    """

    target: str
    measure: str
    name: str
    bound: float
    others: tuple[str, ...] = ()

    @property
    def figure(self) -> Figure:
        return _BY_NAME[self.measure, self.name]


GOALS: Final = (
    Goal("headrace", "streams-256", "cpu", 33),
    Goal("headrace", "streams-256", "cpu", 1.5, _ROUTERS),
    Goal("headrace", "streams-256", "cpu", 1 / 15, ("litellm",)),
    Goal("headrace", "streams-256", "cpu", 1, ("bare",)),
    Goal("headrace-dedicated", "streams-32", "cpu", 90),
    Goal("headrace-dedicated", "streams-32", "cpu", 1 / 6, ("litellm",)),
    Goal("headrace-memory", "streams-256", "cpu", 20),
    Goal("headrace-memory", "streams-256", "cpu", 2, ("asgi",)),
    Goal("headrace", "streams-1", "ttft_p50", 2),
    Goal("headrace", "streams-1", "ttft_p50", 1 / 10, ("litellm",)),
    Goal("headrace", "streams-256", "ttft_p99", 8),
    Goal("headrace", "streams-256", "late_p50", 4),
    Goal("headrace", "streams-256", "late_p99", 6),
    Goal("headrace", "streams-256", "uneven", 3),
    Goal("headrace", "saturation", "rate", 60_000),
    Goal("headrace", "saturation", "rate", 25, ("litellm",)),
    Goal("headrace", "short", "cpu", 500),
    Goal("headrace", "short", "cpu", 1 / 20, ("litellm",)),
    Goal("headrace", "memory", "kib_1000", 25),
    Goal("headrace", "memory", "kib_5000", 25),
    Goal("headrace-upstream", "hang-up", "queued_ms", 50),
    Goal("headrace-upstream", "hang-up", "queued_noticed", 20),
    Goal("headrace-upstream", "hang-up", "prefill_ms", 50),
    Goal("headrace-upstream", "hang-up", "prefill_noticed", 20),
    Goal("headrace-upstream", "hang-up", "stream_ms", 20),
    Goal("headrace-upstream", "hang-up", "stream_noticed", 20),
    Goal("headrace", "dialects", "messages_to_chat", 1.1),
    Goal("headrace", "dialects", "responses_to_chat", 1.1),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal that a run has something to say about.

    Attributes:
        bound: As a value, that of others taken into account.
    """

    goal: Goal
    value: float
    bound: float

    @property
    def reached(self) -> bool:
        return self.value >= self.bound if self.goal.figure.more else self.value <= self.bound

    def cells(self) -> tuple[str, str, str, str]:
        """What is measured, what it should be, what it is, and whether that will do."""
        goal, figure = self.goal, self.goal.figure
        sign = ">=" if figure.more else "<="
        should = f"{sign} {written(self.bound)}"
        if goal.others:
            times = f"{goal.bound:g}" if goal.bound >= 1 else f"1/{1 / goal.bound:g}"
            should += f" ({times} of {' / '.join(goal.others)})"
        what = f"{goal.target}, {goal.measure}: {figure.title}"
        what += f", {figure.unit}" if figure.unit else ""
        if self.reached:
            return what, should, written(self.value), "yes"
        off = self.value / self.bound if self.bound and self.value > 0 else None
        return what, should, written(self.value), "no" if off is None else f"no, {written(off)} x"


def verdicts(records: Sequence[Record], targets: Sequence[str]) -> list[Verdict]:
    """Of each goal whose figures a run has."""
    found = []
    for goal in GOALS:
        values = {row.target: row.value for row in rows(goal.figure, records, targets, goal.target)}
        value = values.get(goal.target)
        others = [of for name in goal.others if (of := values.get(name)) is not None]
        if value is None or (goal.others and not others):
            continue
        best = max if goal.figure.more else min
        bound = goal.bound * best(others) if others else goal.bound
        found.append(Verdict(goal, value, bound))
    return found
