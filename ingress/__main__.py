"""The command line: `headrace up | ingress | worker | batcher`.

Subcommands are found by entry point, so that none pays for another's libraries and a new one is a
line in pyproject.toml.
"""

from __future__ import annotations

from importlib.metadata import entry_points

import click

_GROUP = "headrace.commands"
_ORDER = ("up", "ingress", "worker", "batcher")


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = {point.name for point in entry_points(group=_GROUP)}
        return sorted(names, key=lambda n: (_ORDER.index(n) if n in _ORDER else len(_ORDER), n))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for point in entry_points(group=_GROUP, name=cmd_name):
            command: click.Command = point.load()
            return command
        return None


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headrace", prog_name="headrace")
def main() -> None:
    """A self-hosted LLM service: one public API over many SGLang workers.

    Every option can also be set by the environment variable shown beside it.
    """


if __name__ == "__main__":
    main()
