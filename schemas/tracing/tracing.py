"""How one process makes spans and where they go.

OpenTelemetry is imported only where there is somebody to send them to; until then nothing of it
costs anything. Spans are made from times and figures when something is over, never per Delta, and
there is nothing of a prompt or an output in them. They leave in a thread of their own; a collector
that is away costs spans and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import structlog

from schemas.tracing.settings import traces_wanted

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

log = structlog.get_logger()

_LAST_WORDS_S: Final = 2.0

_INSTALL: Final = "pip install 'headrace[otel]'"


class Tracing:
    """Makes spans.

    Args:
        provider: Where they go.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._propagator = TraceContextTextMapPropagator()
        self.tracer = provider.get_tracer("headrace", version("headrace"))

    def context(self, headers: Mapping[str, str]) -> Context:
        """The trace that these headers belong to; a new one unless they are well-formed."""
        from opentelemetry.context import Context

        return self._propagator.extract(headers, Context())

    def traceparent(self, span: Span) -> str:
        """How to tell others that they are part of this span."""
        from opentelemetry.trace import set_span_in_context

        headers: dict[str, str] = {}
        self._propagator.inject(headers, set_span_in_context(span))
        return headers["traceparent"]

    def close(self) -> None:
        """Send what is left, if that is possible soon: a collector that is away holds up no end."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_LAST_WORDS_S)


@contextmanager
def traced(process: str) -> Iterator[Tracing | None]:
    """What the process makes spans with while the block runs; None where nobody wants any.

    Args:
        process: `ingress`, `worker`, `batcher` or `up`, for the name of the service.
    """
    tracing = _open(process) if traces_wanted() else None
    try:
        yield tracing
    finally:
        if tracing is not None:
            tracing.close()


def _open(process: str) -> Tracing | None:
    try:
        return Tracing(_provider(process, _exporter()))
    except ImportError as error:
        # The variables may be there for everything on a machine; to serve matters more.
        log.warning("tracing.unavailable", missing=error.name, hint=_INSTALL)
        return None


def _exporter() -> SpanExporter:
    """To a collector, over HTTP; it reads its address and the rest from its own variables."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _provider(process: str, exporter: SpanExporter) -> TracerProvider:
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({SERVICE_VERSION: version("headrace")})
    if str(resource.attributes.get(SERVICE_NAME, "unknown")).startswith("unknown"):
        resource = resource.merge(Resource({SERVICE_NAME: f"headrace-{process}"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


class Clock:
    """Turns times of an event loop into what spans are stamped with."""

    def __init__(self, loop_time: float) -> None:
        self._ahead_ns = time.time_ns() - int(loop_time * 1e9)

    def ns(self, loop_time: float) -> int:
        """Unix nanoseconds."""
        return int(loop_time * 1e9) + self._ahead_ns


def known(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those attributes that have a value."""
    return {name: value for name, value in given.items() if value is not None}
