"""Composition root of a worker: settings and a job source to a running Consumer."""

from __future__ import annotations

import secrets
import socket
from typing import TYPE_CHECKING

import structlog

from schemas.tracing.tracing import Tracing
from schemas.transport.base import JobSource
from workers.consumer import Consumer
from workers.count import TokenCounter
from workers.engines.base import Engine, MeasuredEngine
from workers.metrics import WorkerMetrics
from workers.output_format import OutputFormat
from workers.parsing.harmony import HARMONY_NAME
from workers.parsing.reasoning import detect_reasoning_format
from workers.parsing.tools import TOOL_FORMATS, ToolFormat, detect_tool_format
from workers.run import Runner
from workers.settings import WorkerSettings
from workers.sharing import Shares

if TYPE_CHECKING:
    from workers.tracing import RunTracing

log = structlog.get_logger()


def new_worker_id() -> str:
    """Names this process among all workers."""
    return f"{socket.gethostname()}-{secrets.token_hex(3)}"


def build_engine(settings: WorkerSettings) -> Engine:
    """The engine that the settings name, not yet started. One line per engine."""
    if settings.keeping:
        log.warning("worker.keeps_requests", engine_args=settings.keeping)
    match settings.engine:
        case "sglang":
            from workers.engines.sglang import SglangEngine

            server_args = dict(settings.engine_args)
            if settings.reasoning_format is not None:
                # SGLang's scheduler holds a constraint back until it sees reasoning end.
                server_args.setdefault("reasoning_parser", settings.reasoning_format)
            return SglangEngine(
                settings.model,
                served_id=settings.served_id,
                slots=settings.concurrency,
                server_args=server_args,
                hang_s=settings.hang_timeout_s,
                last_words_s=settings.grace_s + 30,
            )
        case "upstream":
            from workers.engines.upstream import UpstreamEngine

            if settings.upstream_url is None:
                raise ValueError("the upstream engine needs --upstream-url")
            return UpstreamEngine(
                settings.upstream_url,
                model=settings.model,
                served_id=settings.served_id,
                slots=settings.concurrency,
                api_key=settings.upstream_api_key,
            )
        case "scripted":
            from workers.engines.scripted import ScriptedEngine

            return ScriptedEngine(served_id=settings.served_id, slots=settings.concurrency)


def build_consumer(
    settings: WorkerSettings,
    engine: Engine,
    source: JobSource,
    *,
    worker_id: str,
    metrics: WorkerMetrics,
    tracing: Tracing | None = None,
) -> Consumer:
    """A Consumer for a started engine."""
    metrics.info.info({"model": engine.card.id, "engine": engine.name})
    if isinstance(engine, MeasuredEngine):
        for collector in engine.collectors():
            metrics.registry.register(collector)
    runner = Runner(
        engine,
        worker_id=worker_id,
        metrics=metrics,
        output_format=OutputFormat(
            reasoning=_reasoning_format(settings, engine),
            hidden_reasoning=settings.hidden_reasoning,
            tools=_tool_format(settings, engine),
            template_stops=engine.template_stop_strings,
        ),
        repetition_window=settings.repetition_window,
        tracing=_run_tracing(tracing, worker_id),
    )
    counter = TokenCounter(engine, worker_id=worker_id, metrics=metrics)
    return Consumer(
        source,
        runner,
        counter,
        announce_interval_s=settings.announce_interval_s,
        heartbeat_s=settings.heartbeat_s,
        shares=Shares.of(engine.slots, share=settings.batch_share, floor=settings.batch_floor),
    )


def _run_tracing(tracing: Tracing | None, worker_id: str) -> RunTracing | None:
    if tracing is None:
        return None
    from workers.tracing import RunTracing

    return RunTracing(tracing, worker_id)


def _tool_format(settings: WorkerSettings, engine: Engine) -> ToolFormat | None:
    """The named format; else the one that the model's own template shows it."""
    if not engine.takes_token_ids or engine.tokenizer is None:
        return None
    name = settings.tool_format or detect_tool_format(engine.tokenizer.template)
    if name is None or name in TOOL_FORMATS:
        return TOOL_FORMATS.get(name or "")
    from workers.engines.sglang_tool_parser import SglangToolFormat

    return SglangToolFormat(name)


def _reasoning_format(settings: WorkerSettings, engine: Engine) -> str | None:
    """The named format; else, for a model that reasons, the one its template shows it."""
    if not engine.takes_token_ids or engine.tokenizer is None:
        return None
    if settings.reasoning_format is not None:
        return settings.reasoning_format
    shown = detect_reasoning_format(engine.tokenizer.template)
    if shown == HARMONY_NAME or engine.card.capabilities.reasoning is not None:
        return shown
    return None
