"""How the processes of a deployment tell each other how they stand.

Nobody says anything until somebody asks, so it costs nothing while nobody wants to know. What is
told is whatever the processes agree on; a transport carries it and does not look into it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol


class Pods(Protocol):
    """The other processes, as one of them sees them."""

    def answer_with(self, tell: Callable[[], bytes]) -> None:
        """From now on answer whoever asks with what `tell` returns."""
        ...

    def ask(self) -> None:
        """Ask all others. Their answers are there a moment later, if they are well."""
        ...

    def heard(self) -> Mapping[str, bytes]:
        """The last answer of each that has answered within the last seconds, by who it is."""
        ...
