"""What is measured when, and for how long. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.peers.measures import Measure

SETTLE_S = 0.3
"""Between two turns, at least: what was hung up is cleared away, and is no part of the next."""
_USUAL_S, _LEAST_S = 1.2, 0.3
_MOST_ROUNDS = 99


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """How long a run is.

    Attributes:
        rounds: Turns of every target in every measure, at most.
        seconds: Of each phase of a turn.
        limit_s: No round is begun that would end after that; the first is taken all the same.
    """

    rounds: int
    seconds: float
    limit_s: float | None = None

    def is_over(self, elapsed_s: float, again_s: float) -> bool:
        """Whether there is no time for another round, which takes about `again_s`."""
        return self.limit_s is not None and elapsed_s + again_s > self.limit_s


@dataclass(frozen=True, slots=True)
class Step:
    """One measure of one target."""

    round: int
    measure: Measure
    target: str


def chosen(measures: Sequence[Measure], words: Sequence[str]) -> list[Measure]:
    """The measures that are named by any of the words, or tell of it; all without words."""
    return [m for m in measures if not words or {m.name, *m.tells} & {*words}]


def plan(measures: Sequence[Measure], targets: Sequence[str], rounds: int, seed: int) -> list[Step]:
    """All steps in order: whatever else the machine does falls on all targets alike.

    The targets of one measure come right after each other, each time in another order; what is
    taken once comes in the first round.
    """
    chance = random.Random(seed)
    steps: list[Step] = []
    for number in range(rounds):
        for measure in measures:
            if measure.once and number:
                continue
            shuffled = chance.sample(targets, len(targets))
            steps += [Step(number, measure, target) for target in shuffled]
    return steps


def expected_s(steps: Sequence[Step], seconds: float) -> float:
    """About how long they take."""
    return sum(
        phases * seconds + beside + SETTLE_S
        for step in steps
        for phases, beside in (step.measure.cost_s,)
    )


def fit(measures: Sequence[Measure], targets: Sequence[str], minutes: float) -> Length:
    """The length of a run that takes about so many minutes.

    Rounds rather than long ones, for what the machine does otherwise changes; shorter ones than
    usual only where not even one would fit.
    """
    limit_s = minutes * 60
    first = plan(measures, targets, 1, 0)
    beside_s = expected_s(first, 0)
    phases = expected_s(first, 1) - beside_s
    seconds = _USUAL_S
    if phases:
        seconds = min(max((limit_s - beside_s) / phases, _LEAST_S), _USUAL_S)
    again_s = expected_s([step for step in first if not step.measure.once], seconds)
    left_s = limit_s - expected_s(first, seconds)
    rounds = 1 + (max(int(left_s / again_s), 0) if again_s else 0)
    return Length(rounds=min(rounds, _MOST_ROUNDS), seconds=seconds, limit_s=limit_s)
