"""The port of the ledger: where the processes of a deployment share what accounts use.

Rules every ledger obeys (the contract suite checks them):

* An exchange is one transaction: all of its turns have been taken, one after the other, or none.
* Exchanges of several processes, whatever their accounts, wait for one another and never fail for
  that.
* One clock judges all of them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Final, Protocol

from ingress.limits.desk import take_turn
from ingress.limits.state import AccountState, Outcome, Turn
from ingress.limits.window import MINUTE, Window

HOLD_S: Final = 10.0


class Ledger(Protocol):
    """Keeps the states of accounts."""

    async def exchange(self, process: str, turns: Sequence[Turn]) -> Sequence[Outcome]:
        """Take the turns of a process, of one account each.

        Raises:
            StoreUnavailable: The ledger cannot be reached, and nobody knows whether they have been
                taken.
        """
        ...

    async def close(self) -> None:
        """Let go of what it is reached by."""
        ...


def take_turns(
    states: MutableMapping[str, AccountState],
    process: str,
    turns: Sequence[Turn],
    *,
    now: float,
    hold_s: float,
    window: Window,
) -> Sequence[Outcome]:
    """Take the turns of a process, one after the other; `states` has those of all accounts."""
    outcomes = []
    for turn in turns:
        state = states[turn.account_id]
        outcome = take_turn(state, turn, process, now=now, hold_s=hold_s, window=window)
        states[turn.account_id] = outcome.state
        outcomes.append(outcome)
    return outcomes


class MemoryLedger:
    """A ledger of one process, which forgets what it knows with the process.

    Args:
        hold_s: How long the hold of a process is believed that says nothing more.
        clock: Gives Unix seconds.
        states: What is known before.
    """

    def __init__(
        self,
        *,
        hold_s: float = HOLD_S,
        window: Window = MINUTE,
        clock: Callable[[], float] = time.time,
        states: Mapping[str, AccountState] | None = None,
    ) -> None:
        self._hold_s = hold_s
        self._window = window
        self._clock = clock
        self._states = defaultdict(AccountState, states or {})

    async def exchange(self, process: str, turns: Sequence[Turn]) -> Sequence[Outcome]:
        return self.take(process, turns)

    def take(self, process: str, turns: Sequence[Turn]) -> Sequence[Outcome]:
        """`exchange`, for nothing has to be waited for."""
        return take_turns(
            self._states,
            process,
            turns,
            now=self._clock(),
            hold_s=self._hold_s,
            window=self._window,
        )

    async def close(self) -> None:
        pass
