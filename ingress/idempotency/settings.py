"""How requests with an `Idempotency-Key` are treated. Times are seconds, sizes are bytes."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class IdempotencySettings(BaseModel):
    """See the module.

    Attributes:
        window_s: For how long a key means the same request, from when it was first used.
        keep_answers: Whether answers are kept for as long, in the blob store.
        linger_s: How long a request goes on that nobody waits for any more, and how long its
            answer can be had again from the process that made it.
        answer_bytes: What of one answer is held for those who may join it; a longer one cannot be
            joined any more, nor kept.
        held_bytes: What of all answers is held in one process.
        lease_s: How long after a process was killed its requests may be run by others.
        store_s: How long the store of keys may take to answer; after that it counts as away, for
            as long again.
        look_s: How soon it is looked whether a request that runs elsewhere has ended; it doubles,
            up to a second.
        sweep_s: How often what is over is deleted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    window_s: float = Field(default=86_400.0, gt=0)
    keep_answers: bool = False
    linger_s: float = Field(default=5.0, ge=0)
    answer_bytes: int = Field(default=16 << 20, gt=0)
    held_bytes: int = Field(default=256 << 20, gt=0)
    lease_s: float = Field(default=15.0, gt=0)
    store_s: float = Field(default=3.0, gt=0)
    look_s: float = Field(default=0.1, gt=0)
    sweep_s: float = Field(default=60.0, gt=0)
