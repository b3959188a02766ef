"""Fixtures shared by all layers live in `tests/fixtures`, one file per thing they start.

The suite runs in several processes, and what is dear to start is started in one of them only.
"""

import gc
import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# A hundred processes are started here, and each would compile the whole service for itself.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # noqa: TID251 - for those processes

# Thousands of tests and dozens of libraries are looked through whenever garbage is collected.
gc.set_threshold(50_000, 20, 50)

# With a failure hypothesis imports what would make a patch of it. Nobody wants the patch, and in
# some releases of Python 3.11 the import fails in a way that hides the failure.
sys.modules["hypothesis.extra._patching"] = None  # type: ignore[assignment]

pytest_plugins = [
    "tests.fixtures.failures",  # before those that import it, or its asserts are not rewritten
    "tests.fixtures.broker",
    "tests.fixtures.browser",
    "tests.fixtures.certificates",
    "tests.fixtures.clients",
    "tests.fixtures.engine",
    "tests.fixtures.postgres",
]

SHARED: Mapping[str, re.Pattern[str]] = {
    "sglang": re.compile(r"\bsglang_engine\b"),
    "own broker": re.compile(r"\bown_broker\b"),
    "broker": re.compile(r"\bbroker: Broker\b|\bproxy: Proxy\b"),
    "browser": re.compile(r"\bbrowser: Browser\b"),
    "postgres": re.compile(r"\bpostgres: Postgres\b"),
    "libraries": re.compile(
        r"^ *(import|from) (sglang|transformers|torch|xgrammar|tests\.fixtures\.grammars)\b",
        re.MULTILINE,
    ),
}
"""What is dear to start, or to import: all files that use one run in the same process.

Of several, the first counts.
"""

WHOLE_FILES = ("tests/contract/", "tests/integration/", "tests/sdk/")
"""Where files share a stack or a process of their own among their tests."""

FIRST = (
    "sglang",
    "own broker",
    "broker",
    "tests/integration/test_fleet.py",
    "tests/chaos/",
    "postgres",
    "browser",
    "tests/integration/test_up_sglang.py",
    "libraries",
    *WHOLE_FILES,
)
"""What takes long begins early, so that no process is left with it alone in the end."""


@cache
def _group(file: str) -> str | None:
    """The tests that one process must run with those of this file; None if any may run any."""
    source = (Path(__file__).parents[1] / file).read_text(encoding="utf-8")
    group = next((name for name, uses in SHARED.items() if uses.search(source)), None)
    return group or (file if file.startswith(WHOLE_FILES) else None)


def _place(item: pytest.Item) -> int:
    file = item.nodeid.partition("::")[0]
    names = (_group(file), file)
    return next(
        (
            place
            for place, first in enumerate(FIRST)
            if any(n and n.startswith(first) for n in names)
        ),
        len(FIRST),
    )


class _Scheduling(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid.partition("::")[0]) or nodeid


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one of several processes
        items.sort(key=_place)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # what was imported and collected stays


def pytest_unconfigure() -> None:
    gc.unfreeze()  # or libraries would say at the end that it was leaked


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    config.option.loadscopereorder = False  # which would begin with the most tests
    return _Scheduling(config, log)
