"""The log says where an exception came from, and never what it says."""

from __future__ import annotations

import subprocess
import sys

import orjson
import pytest
import structlog

from schemas.telemetry import Sampling

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


COMPLAINTS = """
import asyncio, gc, sys, threading
from schemas.telemetry import configure_logging
configure_logging("debug", json=sys.argv[1] == "json")

class Secret:
    def __repr__(self):
        return "canary-argument"
    def __call__(self, *_):
        raise ValueError("canary-callback")
    def __del__(self):
        raise ValueError("canary-destructor")

async def fail(_):
    raise ValueError("canary-task")

async def main():
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(fail(Secret()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    del task
    gc.collect()
    loop.call_soon(Secret(), Secret())
    future = loop.create_future()
    future.set_exception(ValueError("canary-future"))
    del future
    gc.collect()
    loop.call_exception_handler({"message": "canary-message", "exception": ValueError("canary")})
    await asyncio.sleep(0)

if sys.argv[2] == "uvloop":
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main())

def work(_):
    raise ValueError("canary-thread")
thread = threading.Thread(target=work, args=("canary",))
thread.start()
thread.join()
"""


@pytest.mark.rule("zdr.logs")
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize("form", ["json", "readable"])
def test_what_python_itself_complains_of_is_not_quoted(form: str, loop: str) -> None:
    command = [sys.executable, "-c", COMPLAINTS, form, loop]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "canary" not in result.stdout + result.stderr
    assert result.stderr == ""
    for event in (
        "Task exception was never retrieved",
        "Future exception was never retrieved",
        "Exception in callback",
        "thread.crashed",
        "exception.ignored",
    ):
        assert event in result.stdout
    assert result.stdout.count("ValueError") >= 5, "but where each came from"


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


def _kept(of: int, **event: object) -> list[str]:
    """Which of the Jobs 0 to 999 a line with these fields is written of."""
    sampling, kept = Sampling(of), []
    for number in range(1000):
        try:
            line = sampling(None, "info", {"job_id": f"job-{number}", **event})
        except structlog.DropEvent:
            continue
        assert line.get("sample", of) == of
        kept.append(str(line["job_id"]))
    return kept


GOOD = {"event": "request.completed", "outcome": "completed", "status": 200, "attempt": 1}


def test_of_what_went_well_one_line_in_so_many_is_written() -> None:
    kept = _kept(10, **GOOD)
    assert 60 < len(kept) < 140
    assert kept == _kept(10, event="job.completed", attempt=1), "and all that is said of it"
    assert set(_kept(20, **GOOD)) < set(kept)
    assert len(_kept(10, event="count.completed", outcome="exact", status=200)) == len(kept)


@pytest.mark.parametrize(
    "event",
    [
        {**GOOD, "outcome": "failed"},
        {**GOOD, "outcome": "cancelled", "status": 499},
        {**GOOD, "attempt": 2},
        {"event": "count.completed", "outcome": "failed", "status": 400},
        {"event": "job.interrupted", "attempt": 1},
        {"event": "request.refused", "status": 401},
        {"event": "broker.reconnected"},
    ],
)
def test_everything_else_is_always_written(event: dict[str, object]) -> None:
    assert len(_kept(10, **event)) == 1000


SAMPLED = """
import structlog
from schemas.options import Logs
Logs("info", "json", 1_000_000).configure()
log = structlog.get_logger()
for number in range(100):
    log.info("request.completed", job_id=str(number), outcome="completed", status=200, attempt=1)
log.info("request.completed", job_id="x", outcome="failed", status=500, attempt=1)
"""


def test_options_of_the_log_are_obeyed() -> None:
    done = subprocess.run([sys.executable, "-c", SAMPLED], capture_output=True, check=True)
    (line,) = [orjson.loads(line) for line in done.stdout.splitlines()]
    assert line["outcome"] == "failed"
