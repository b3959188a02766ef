"""The log says where an exception came from, and never what it says."""

from __future__ import annotations

import subprocess
import sys

import orjson
import pytest

SCRIPT = """
import logging, sys, structlog
from schemas.telemetry import configure_logging
configure_logging("info", json=sys.argv[1] == "json")
try:
    raise ValueError("canary-prompt")
except ValueError as error:
    structlog.get_logger().exception("ours")
    structlog.get_logger().error("given", exc_info=error)
    logging.getLogger("uvicorn.error").error("theirs", exc_info=error)
"""


@pytest.mark.parametrize("form", ["json", "readable"])
def test_an_exception_is_located_but_not_quoted(form: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, form], capture_output=True, text=True, check=True
    )
    assert "canary" not in result.stdout + result.stderr
    assert result.stdout.count("ValueError") == 3
    if form == "json":
        lines = [orjson.loads(line) for line in result.stdout.splitlines()]
        assert [line["event"] for line in lines] == ["ours", "given", "theirs"]
        assert all(line["frames"] == ["<string>:6 <module>"] for line in lines)
