"""Fixtures shared by all layers live in `tests/fixtures`, one file per thing they start.

The suite runs in several processes, and what is dear to start is started in one of them only.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

pytest_plugins = [
    "tests.fixtures.broker",
    "tests.fixtures.clients",
    "tests.fixtures.engine",
    "tests.fixtures.postgres",
]

SHARED: Mapping[str, re.Pattern[str]] = {
    "sglang": re.compile(r"\bsglang_engine\b"),
    "broker": re.compile(r"\bbroker: Broker\b|\bown_broker\b|\bproxy: Proxy\b"),
    "postgres": re.compile(r"\bpostgres: Postgres\b"),
}
"""Fixtures of the whole session: all files that use one run in the same process."""

WHOLE_FILES = ("tests/contract/", "tests/integration/", "tests/sdk/")
"""Where files share a stack or a process of their own among their tests."""


@cache
def _group(file: str) -> str | None:
    """The tests that one process must run with those of this file; None if any may run any."""
    if not file.startswith(WHOLE_FILES):
        return None
    source = (Path(__file__).parents[1] / file).read_text(encoding="utf-8")
    return next((name for name, uses in SHARED.items() if uses.search(source)), file)


class _Scheduling(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return _group(nodeid.partition("::")[0]) or nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _Scheduling(config, log)
