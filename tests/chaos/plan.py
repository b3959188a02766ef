"""What is injured, in which order: a pure function of a seed, so that a run can be repeated.

A plan names kinds of victims and draws lots; which process that is in the end depends on who is up
at that moment, and the report tells it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Victim: TypeAlias = Literal[
    "worker", "scheduler", "detokenizer", "supervisor", "ingress", "batcher", "broker", "client"
]
"""A process of a kind: a worker's main process, its engine's two, or the parent that restarts it;
`client` is no process but somebody who leaves in the middle of an answer."""

WORKER_PARTS: tuple[Victim, ...] = ("worker", "scheduler", "detokenizer", "supervisor")


@dataclass(frozen=True, slots=True, kw_only=True)
class Injury:
    """One thing to do.

    Attributes:
        lot: In [0, 1): which of those who are up it falls on.
        pause_s: How long to wait before it, at least.
    """

    number: int
    victim: Victim
    lot: float
    pause_s: float

    def pick(self, candidates: Sequence[str]) -> str:
        """The one it falls on."""
        return candidates[int(self.lot * len(candidates))]

    def __str__(self) -> str:
        return f"{self.number:5}  +{self.pause_s:6.2f} s  {self.victim:11}  lot {self.lot:.3f}"


def in_turn(
    victims: Sequence[Victim], *, seed: int, kills: int, pace_s: float
) -> tuple[Injury, ...]:
    """Kinds of victims one after the other, about `pace_s` apart."""
    rng = random.Random(seed)
    return tuple(
        _injury(rng, number, victims[number % len(victims)], pace_s) for number in range(kills)
    )


def at_random(
    weights: Mapping[Victim, float], *, seed: int, kills: int, pace_s: float
) -> tuple[Injury, ...]:
    """Kinds of victims by weighted lot, about `pace_s` apart."""
    rng = random.Random(seed)
    kinds = list(weights)
    chosen = rng.choices(kinds, [weights[kind] for kind in kinds], k=kills)
    return tuple(_injury(rng, number, victim, pace_s) for number, victim in enumerate(chosen))


def each_then_at_random(
    weights: Mapping[Victim, float], *, seed: int, kills: int, pace_s: float
) -> tuple[Injury, ...]:
    """The same, but with every kind among the first, in an order by lot; too few kills: at random.

    So that a run that may end early has seen each of them, whatever its seed.
    """
    plan = at_random(weights, seed=seed, kills=kills, pace_s=pace_s)
    if kills < 2 * len(weights):
        return plan
    first = random.Random(seed).sample(list(weights), k=len(weights))
    return tuple(
        replace(injury, victim=first[number]) if number < len(first) else injury
        for number, injury in enumerate(plan)
    )


def volleys(plan: Sequence[Injury], size: int) -> list[Sequence[Injury]]:
    """The plan in groups of at most `size`, to be done at once."""
    return [plan[at : at + size] for at in range(0, len(plan), size)]


def _injury(rng: random.Random, number: int, victim: Victim, pace_s: float) -> Injury:
    # Never in step with anything else that happens at intervals.
    return Injury(
        number=number, victim=victim, lot=rng.random(), pause_s=pace_s * rng.uniform(0.5, 1.5)
    )
