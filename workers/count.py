"""One counting Delivery from start to settlement: render, count, answer, ack.

It takes no slot and nothing of the engine but its tokenizer. A worker that drains takes no more of
them and answers those it holds.
"""

from __future__ import annotations

import asyncio

import structlog

from schemas import telemetry
from schemas.delta import Counted, Delta, Failed, ReplyMessage
from schemas.errors import GenerationFailed, ServingError
from schemas.job import ChatPrompt
from schemas.transport.base import Delivery
from workers.engines.base import Engine
from workers.metrics import WorkerMetrics
from workers.prompt import length, render

log = structlog.get_logger()


class TokenCounter:
    """Answers counting Deliveries with an engine's tokenizer.

    Args:
        engine: Started.
        worker_id: Named in `Counted`.
    """

    def __init__(self, engine: Engine, *, worker_id: str, metrics: WorkerMetrics) -> None:
        self._engine = engine
        self._worker_id = worker_id
        self._metrics = metrics

    async def run(self, delivery: Delivery) -> None:
        """Answer one Delivery and settle it. Raises nothing but `CancelledError`."""
        outcome = "failed"
        try:
            if delivery.cancelled.is_set():
                outcome = "cancelled"
                return
            tokens = await self._count(delivery)
            outcome = "counted"
            _answer(delivery, Counted(self._worker_id, tokens))
        except ServingError as error:
            _answer(delivery, Failed(error.info()))
        except asyncio.CancelledError:
            outcome = "cancelled"
            _answer(delivery, Counted(self._worker_id, None))
            raise
        except Exception:
            log.exception(telemetry.JOB_FAILED, job_id=delivery.job.job_id)
            _answer(delivery, Failed(GenerationFailed("The prompt could not be counted.").info()))
        finally:
            await asyncio.shield(delivery.ack())
            self._metrics.jobs.labels(outcome=outcome).inc()

    async def _count(self, delivery: Delivery) -> int | None:
        """Prompt tokens; None where that cannot be told exactly.

        Raises:
            RequestError: The conversation cannot be rendered, and so not be generated from either.
        """
        tokenizer = self._engine.tokenizer
        if delivery.redelivered or tokenizer is None:
            # An earlier holder is gone, maybe because of this prompt; an estimate costs no worker.
            return None
        if not isinstance(delivery.job.prompt, ChatPrompt):
            return None
        ids, _ = await render(tokenizer, delivery.job)
        return await length(self._engine, delivery.job, ids)


def _answer(delivery: Delivery, delta: Delta) -> None:
    job = delivery.job
    delivery.send(ReplyMessage(job.job_id, job.attempt, 0, (delta,)))
