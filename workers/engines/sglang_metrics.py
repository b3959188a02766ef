"""SGLang's own metrics, passed through as they are.

Its scheduler and detokenizer keep theirs in files of a directory, those of its tokenizer manager
are in this process. There are some only if it was told `enable_metrics`; they cost it a little.

Source: `sglang.srt.observability.metrics_collector`, version 0.5.23, and the multiprocess mode of
`prometheus_client`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Metric, values
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

_PREFIX: Final = "sglang"
_DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"
"""SGLang sets it when it was told `enable_metrics`."""


def share_metrics() -> None:
    """In a child process of SGLang: keep metrics where the worker finds them.

    The library decides that when it is imported; a forked process has it from one that knew of no
    directory yet.
    """
    if _DIRECTORY in os.environ:  # noqa: TID251 - SGLang tells it this way
        chosen = values.get_value_class()  # type: ignore[no-untyped-call] # it has no types
        values.ValueClass = chosen


class SglangMetrics(Collector):
    """Those of every process of SGLang.

    Args:
        directory: Where they keep them.
    """

    def __init__(self, directory: str) -> None:
        registry = CollectorRegistry()  # it registers with one; this one nobody shows
        self._files = MultiProcessCollector(registry, path=directory)  # type: ignore[no-untyped-call] # as above

    @classmethod
    def adopt(cls) -> SglangMetrics | None:
        """Those of the engine that was just launched, if it has any.

        Its children know where; whatever else this process may start must not put its own there.
        """
        directory = os.environ.pop(_DIRECTORY, None)  # noqa: TID251
        return None if directory is None else cls(directory)

    def describe(self) -> Iterator[Metric]:
        """What there is depends on SGLang."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """All of them, families of several processes as one."""
        families: dict[str, Metric] = {}
        for source in (self._files, REGISTRY):
            for family in source.collect():
                if not family.name.startswith(_PREFIX):
                    continue
                known = families.setdefault(family.name, family)
                if known is not family:
                    known.samples += family.samples
        return iter(families.values())
