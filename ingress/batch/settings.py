"""A batcher's settings, parsed once and passed down. Times are seconds, sizes are bytes."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class BatcherSettings(BaseModel):
    """How a batcher works.

    Attributes:
        max_batches: That it has in hand at the same time.
        window: Lines of one model in flight; None follows the slots that its workers have.
        max_window: Upper bound of what follows from those slots.
        max_window_bytes: Input bytes of the lines of one model in flight. A larger line runs alone.
        lease_s: For how long a batch is claimed; it is renewed at a third of that.
        poll_s: How often a batch is looked at, to see that it was cancelled.
        claim_s: How often there is a look for batches that nobody has.
        commit_lines, commit_bytes, commit_s: Results are stored together, up to so many, so large
            or so late.
        retries: How often a line that failed for a passing reason is tried again.
        retry_first_s: Pause before it is tried again for the first time, about; it doubles.
        presence_s: For how long a batcher must have been connected before it believes that there is
            no model of a name.
        look_s: How often it is looked whether workers have come or gone.
        sweep_s: How often what has expired is deleted.
        orphans_s: How often blobs are looked for that nobody knows of.
        usage_days: How long records of usage are kept.
        grace_s: How long running lines may go on after SIGTERM.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_batches: int = Field(default=8, gt=0)
    window: int | None = Field(default=None, gt=0)
    max_window: int = Field(default=1024, gt=0)
    max_window_bytes: int = Field(default=16 << 20, gt=0)
    lease_s: float = Field(default=30.0, gt=0)
    poll_s: float = Field(default=0.5, gt=0)
    claim_s: float = Field(default=1.0, gt=0)
    commit_lines: int = Field(default=64, gt=0)
    commit_bytes: int = Field(default=1 << 20, gt=0)
    commit_s: float = Field(default=0.25, gt=0)
    retries: int = Field(default=5, ge=0)
    retry_first_s: float = Field(default=0.5, gt=0)
    presence_s: float = Field(default=10.0, ge=0)
    look_s: float = Field(default=0.2, gt=0)
    sweep_s: float = Field(default=300.0, gt=0)
    orphans_s: float = Field(default=3600.0, gt=0)
    usage_days: int = Field(default=400, gt=0)
    grace_s: float = Field(default=30.0, ge=0)
