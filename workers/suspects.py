"""Starting Jobs that may have cost another worker its life so that the guilty one is found.

Suspects are tested: each has the worker to itself, as far as suspects go, from before it is
accepted until its first new token. If the worker dies meanwhile, it was that one. But a test may
take long (a prompt of many thousand tokens on a busy engine), and when a worker dies dozens of
streams stand still and wait for theirs. So after a moment the next test begins beside the one that
goes on; those in company are told, and their owners do not take the worker's death for proof. A
suspect that was lost in company is exclusive the next time: nobody is tested with it until it is
cleared.

So a Job that kills every worker at once is found out at its second one, one that takes its time at
its third at the latest, and nobody else is ever blamed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PATIENCE_S = 0.1
"""How long others wait for a test that takes its time. An engine that a Job crashes has mostly
crashed by then."""


class Suspect:
    """One test.

    Args:
        exclusive: No other one may go on meanwhile.
        on_company: Called when another test begins beside it.

    Attributes:
        alone: No other suspect is being tested.
    """

    def __init__(self, *, exclusive: bool, on_company: Callable[[], None]) -> None:
        self.exclusive = exclusive
        self.on_company = on_company
        self.alone = True


class Suspects:
    """The tests of one worker.

    Attributes:
        waiting: How many wait for theirs.
    """

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self.waiting = 0
        self._patience_s = patience_s
        self._turn = asyncio.Lock()
        self._whose: Suspect | None = None  # holds the turn
        self._timer: asyncio.TimerHandle | None = None
        self._tested: set[Suspect] = set()
        self._nobody_tested = asyncio.Event()
        self._nobody_tested.set()

    async def test(self, suspect: Suspect) -> None:
        """Begin a test once it is its turn; in the order of asking."""
        self.waiting += 1
        try:
            await self._turn.acquire()
            try:
                if suspect.exclusive:
                    await self._nobody_tested.wait()
            except BaseException:
                self._turn.release()
                raise
        finally:
            self.waiting -= 1
        self._whose = suspect
        suspect.alone = not self._tested
        for other in self._tested:
            if other.alone:
                other.alone = False
                other.on_company()
        self._tested.add(suspect)
        self._nobody_tested.clear()
        if not suspect.exclusive:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._patience_s, self._pass_turn, suspect)

    def clear(self, suspect: Suspect) -> None:
        """It did no harm, or has ended. Idempotent."""
        self._pass_turn(suspect)
        self._tested.discard(suspect)
        if not self._tested:
            self._nobody_tested.set()

    def _pass_turn(self, suspect: Suspect) -> None:
        if self._whose is not suspect:
            return
        self._whose = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._turn.release()
