"""Names of log events and the logging setup both sides share.

One JSON line per event on stdout (a readable form on a terminal). Never a prompt, an output, an
image or a key: nothing here renders arguments of exceptions that came from outside, and callers
pass identifiers and figures only.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

import orjson
import structlog

REQUEST_COMPLETED: Final = "request.completed"
"""The canonical line: one per request, whatever its end."""

JOB_ACCEPTED: Final = "job.accepted"
JOB_COMPLETED: Final = "job.completed"
JOB_FAILED: Final = "job.failed"
JOB_CANCELLED: Final = "job.cancelled"
JOB_INTERRUPTED: Final = "job.interrupted"
JOB_DEAD_LETTERED: Final = "job.dead_lettered"
JOB_REDELIVERED: Final = "job.redelivered"
REPLY_RETURNED: Final = "reply.returned"
BROKER_RECONNECTED: Final = "broker.reconnected"
WORKER_READY: Final = "worker.ready"
WORKER_DRAINING: Final = "worker.draining"


def _render_json(_: Any, __: str, event: structlog.typing.EventDict) -> str:
    return orjson.dumps(event, default=repr).decode()


def configure_logging(level: str = "info", *, json: bool | None = None) -> None:
    """Route structlog and the standard library's loggers to stdout.

    Args:
        level: Least level written: debug, info, warning or error.
        json: JSON lines, or readable ones; by default JSON unless stdout is a terminal.
    """
    if json is None:
        json = not sys.stdout.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, _render_json]
        if json
        else [structlog.dev.ConsoleRenderer(colors=sys.stdout.isatty())]
    )
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared[:-1], structlog.stdlib.add_logger_name],
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
