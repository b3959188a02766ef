"""Fixtures shared by all layers live in `tests/fixtures`, one file per thing they start.

The suite runs in several processes, and what is dear to start is started in one of them only.
"""

import pytest

pytest_plugins = ["tests.fixtures.broker", "tests.fixtures.engine"]

SHARED = {"sglang_engine": "sglang", "broker": "broker"}
"""Fixtures of the whole session: all tests that use one run in the same process."""

WHOLE_FILES = ("tests/contract/", "tests/integration/", "tests/sdk/")
"""Where files share a stack or a process of their own among their tests."""


@pytest.hookimpl(tryfirst=True)  # before the groups are read
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        file = item.nodeid.partition("::")[0]
        group = next((SHARED[name] for name in SHARED if name in fixtures), None)
        if group is None and file.startswith(WHOLE_FILES):
            group = file
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
