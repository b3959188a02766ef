"""The command line: `headrace up | ingress | worker | batcher | batch | accounts | keys | …`."""

from __future__ import annotations

import sys

import click

from ingress.lazy_group import LazyGroup


@click.command(
    cls=LazyGroup,
    entry_points="headrace.commands",
    order=(
        *("up", "ingress", "worker", "batcher", "batch"),
        *("accounts", "keys", "usage", "database", "doctor"),
    ),
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="headrace", prog_name="headrace")
def main() -> None:
    """A self-hosted LLM service: one public API over many SGLang workers.

    Every option can also be set by the environment variable shown beside it.
    """
    if sys.platform != "win32":
        import resource

        # The memory of these processes holds prompts, answers and keys; so would a core file.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
