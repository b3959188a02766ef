"""A command group whose commands are found by entry point and imported when they are asked for.

So none pays for another's libraries, and a new one is a line in pyproject.toml.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

import click


class LazyGroup(click.Group):
    """See above.

    Args:
        entry_points: The name of the group of entry points.
        order: In which commands are listed; others follow.
    """

    def __init__(
        self, *args: Any, entry_points: str, order: Sequence[str] = (), **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._entry_points = entry_points
        self._order = order

    def list_commands(self, ctx: click.Context) -> list[str]:
        named = {point.name for point in entry_points(group=self._entry_points)}
        order = self._order
        return sorted(
            named.union(super().list_commands(ctx)),
            key=lambda name: (order.index(name) if name in order else len(order), name),
        )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for point in entry_points(group=self._entry_points, name=cmd_name):
            command: click.Command = point.load()
            return command
        return super().get_command(ctx, cmd_name)
