"""Fixtures shared by all layers live in `tests/fixtures`, one file per thing they start."""

pytest_plugins = ["tests.fixtures.broker", "tests.fixtures.engine"]
