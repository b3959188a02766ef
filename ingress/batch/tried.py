"""What has been tried for one line of a batch, and the record of what that used."""

from __future__ import annotations

import msgspec

from ingress.generation import Generation, outcome_of
from ingress.usage.prices import cost_microcents
from schemas.batch import Batch
from schemas.delta import Usage
from schemas.errors import ErrorInfo
from schemas.model_card import Pricing
from schemas.usage_record import UsageRecord


class Tried:
    """One line.

    Args:
        began_at: Unix seconds.
        model: In catalogue spelling, where that is known.

    Attributes:
        generation: Of the last try; None if it was not executed.
    """

    __slots__ = ("_began_at", "_model", "_pricing", "generation", "request_id")

    def __init__(
        self,
        request_id: str,
        began_at: float,
        *,
        model: str = "",
        pricing: Pricing | None = None,
    ) -> None:
        self.request_id = request_id
        self._began_at = began_at
        self._model = model
        self._pricing = pricing
        self.generation: Generation | None = None

    def record(
        self,
        batch: Batch,
        line: int,
        dialect: str,
        *,
        now: float,
        status: int = 200,
        error: ErrorInfo | None = None,
    ) -> UsageRecord:
        """The record of the line: the same id whoever runs it and how often."""
        generation = self.generation
        record = UsageRecord(
            record_id=f"{batch.batch_id}:{line}",
            request_id=self.request_id,
            account=batch.account,
            key="",
            model=self._model,
            dialect=dialect,
            job_class="batch",
            batch_id=batch.batch_id,
            began_at=self._began_at,
            status=status,
            outcome=outcome_of(error),
            code=None if error is None else error.code,
            duration_ms=round(max(0.0, now - self._began_at) * 1000, 1),
            attempts=0,
        )
        return record if generation is None else _with(record, generation, self._pricing)


def _with(record: UsageRecord, generation: Generation, pricing: Pricing | None) -> UsageRecord:
    usage: Usage = generation.usage
    return msgspec.structs.replace(
        record,
        finish_reason=generation.finish_reason,
        ttft_ms=_ms(generation.ttft_s),
        queue_ms=_ms(generation.queue_s),
        usage=usage,
        microcents=cost_microcents(usage, pricing),
        attempts=generation.attempt,
        worker=generation.worker,
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
