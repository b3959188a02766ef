"""The command line: `headrace up | ingress | worker | batcher | batch | database`."""

from __future__ import annotations

import click

from ingress.lazy_group import LazyGroup


@click.command(
    cls=LazyGroup,
    entry_points="headrace.commands",
    order=("up", "ingress", "worker", "batcher", "batch", "database"),
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="headrace", prog_name="headrace")
def main() -> None:
    """A self-hosted LLM service: one public API over many SGLang workers.

    Every option can also be set by the environment variable shown beside it.
    """


if __name__ == "__main__":
    main()
