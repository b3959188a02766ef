"""Names of log events and the logging setup both sides share.

One JSON line per event on stdout (a readable form on a terminal). Never a prompt, an output, an
image or a key: nothing here renders arguments of exceptions that came from outside, and callers
pass identifiers and figures only. Where Python itself speaks up it is held to the same: about
exceptions that nobody has waited for, in threads and in destructors.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
import zlib
from typing import Any, Final

import orjson
import structlog

REQUEST_COMPLETED: Final = "request.completed"
"""The canonical line: one per request, whatever its end."""

COUNT_COMPLETED: Final = "count.completed"
"""The same for a request that only counts tokens."""

REQUEST_REFUSED: Final = "request.refused"
"""The same for a request that was answered with an error before anything was begun for it."""

JOB_COMPLETED: Final = "job.completed"
"""A worker's line of a Job that it has brought to its end."""

FILE_TRANSFERRED: Final = "file.transferred"
"""The same for an upload or a download."""

JOB_FAILED: Final = "job.failed"
JOB_CANCELLED: Final = "job.cancelled"
JOB_INTERRUPTED: Final = "job.interrupted"
JOB_REDELIVERED: Final = "job.redelivered"
BATCH_CREATED: Final = "batch.created"
WORKER_READY: Final = "worker.ready"
WORKER_DRAINING: Final = "worker.draining"
INGRESS_DRAINING: Final = "ingress.draining"
ENGINE_LOST: Final = "worker.engine_lost"
BATCH_CLAIMED: Final = "batch.claimed"
BATCH_VALIDATED: Final = "batch.validated"
BATCH_FINISHED: Final = "batch.finished"

_SAMPLED: Final = frozenset((REQUEST_COMPLETED, COUNT_COMPLETED, JOB_COMPLETED))
_WELL: Final = frozenset(("completed", "exact"))

_MAX_FRAMES: Final = 30

_COMPLAINTS: Final = (
    "Task exception was never retrieved",
    "Future exception was never retrieved",
    "Task was destroyed but it is pending",
    "Exception in callback",
    "Unhandled exception in event loop",
    "Fatal read error on socket transport",
    "Fatal write error on socket transport",
    "Executing",
)
"""How those of asyncio begin."""


def _locate_exception(_: Any, __: str, event: structlog.typing.EventDict) -> Any:
    """Replace an exception by its type and where it came from.

    Its text is left out: libraries quote what they were given, and that may be a prompt.
    """
    given = event.pop("exc_info", None)
    if given is True:
        given = sys.exc_info()
    error = given[1] if isinstance(given, tuple) else given
    if isinstance(error, BaseException):
        event["error"] = type(error).__name__
        event["frames"] = [
            f"{frame.filename}:{frame.lineno} {frame.name}"
            for frame in traceback.extract_tb(error.__traceback__)[-_MAX_FRAMES:]
        ]
    return event


def _without_quotes(_: Any, __: str, event: structlog.typing.EventDict) -> Any:
    """Keep of asyncio's complaints what they are about, not whom: they quote tasks and arguments.

    A task that has failed stands there with its exception's text, a callback with what it was
    called with.
    """
    if event.get("logger") == "asyncio":
        text = str(event["event"])
        event["event"] = next((known for known in _COMPLAINTS if text.startswith(known)), "asyncio")
    return event


def _render_json(_: Any, __: str, event: structlog.typing.EventDict) -> str:
    return orjson.dumps(event, default=repr).decode()


class Sampling:
    """Leaves out most of the lines about what went well.

    Which ones depends on the Job alone, so that of one that is told of everything is, by whatever
    process; a line that stands for others says for how many. What failed, was given up, or took
    more than one worker is always told.

    Args:
        of: One in so many is kept.
    """

    def __init__(self, of: int) -> None:
        self._of = of

    def __call__(
        self, _: Any, __: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        if event["event"] not in _SAMPLED or event.get("outcome", "completed") not in _WELL:
            return event
        if event.get("attempt", 1) != 1 or event.get("status", 200) != 200:
            return event
        identity = event.get("job_id") or event.get("request_id") or ""
        if zlib.crc32(str(identity).encode()) % self._of:
            raise structlog.DropEvent
        event["sample"] = self._of
        return event


def configure_logging(level: str = "info", *, json: bool | None = None, sample: int = 1) -> None:
    """Route structlog and the standard library's loggers to stdout.

    Args:
        level: Least level written: debug, info, warning or error.
        json: JSON lines, or readable ones; by default JSON unless stdout is a terminal.
        sample: Of the lines about what went well one in so many is written.
    """
    if json is None:
        json = not sys.stdout.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _locate_exception,
    ]
    renderer: list[structlog.typing.Processor] = (
        [_render_json] if json else [structlog.dev.ConsoleRenderer(colors=sys.stdout.isatty())]
    )
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*([Sampling(sample)] if sample > 1 else []), *shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name, _without_quotes],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Libraries speak up from warnings on; their info lines repeat what our events say.
    root.setLevel(max(number, logging.WARNING))
    # These print tracebacks at every reconnect, and message bodies when debugging. What matters of
    # the broker is told by events of our own.
    for name in ("aio_pika", "aiormq"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    threading.excepthook = _tell_of_thread
    sys.unraisablehook = _tell_of_unraisable


def _tell_of_thread(failed: threading.ExceptHookArgs) -> None:
    structlog.get_logger().error("thread.crashed", exc_info=failed.exc_value)


def _tell_of_unraisable(failed: sys.UnraisableHookArgs) -> None:
    structlog.get_logger().error("exception.ignored", exc_info=failed.exc_value)
