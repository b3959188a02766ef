"""Traces go where OpenTelemetry's variables say, and nobody pays for them otherwise."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from structlog.testing import capture_logs

from schemas.tracing.settings import traces_wanted
from schemas.tracing.tracing import traced

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (_ENDPOINT, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({_ENDPOINT: "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", _ENDPOINT: "http://collector:4318"}, False),
        ({"OTEL_SDK_DISABLED": "true", _ENDPOINT: "http://collector:4318"}, False),
    ],
)
def test_who_is_to_get_traces(
    monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], wanted: bool
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert traces_wanted() is wanted


class _Collector(HTTPServer):
    """Takes OTLP over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, ExportTraceServiceRequest]] = []


class _Handler(BaseHTTPRequestHandler):
    server: _Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        assert self.headers["content-encoding"] in (None, "identity")
        self.server.requests.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def collecting() -> Iterator[_Collector]:
    with _Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()


def test_spans_reach_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        monkeypatch.setenv(_ENDPOINT, f"http://127.0.0.1:{collector.server_port}")
        with traced("worker") as tracing:
            assert tracing is not None
            tracing.tracer.start_span("generate").end()
    ((path, request),) = collector.requests
    assert path == "/v1/traces"
    (told,) = request.resource_spans
    names = {attribute.key: attribute.value.string_value for attribute in told.resource.attributes}
    assert names["service.name"] == "headrace-worker"
    assert [span.name for span in told.scope_spans[0].spans] == ["generate"]


def test_without_the_library_the_service_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_ENDPOINT, "http://127.0.0.1:1")
    known = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(name=name)
        return known(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with capture_logs() as lines, traced("worker") as tracing:
        assert tracing is None
    assert [line["event"] for line in lines] == ["tracing.unavailable"]
    assert "headrace[otel]" in lines[0]["hint"]
