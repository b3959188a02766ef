"""What one request used: made by who answered it, kept in the store, shown to its account.

There is exactly one per request that reached a model's queue, whatever its end, and one per line
of a batch. It says nothing of what was asked or answered.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from schemas.delta import Usage

UsageOutcome: TypeAlias = Literal["completed", "cancelled", "failed"]


_LARGE: Final = 2**31
_LARGEST: Final = 2**63
_LATEST: Final = 253_402_300_800.0  # after it there are no dates


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request.

    Attributes:
        record_id: Unique: the Job's id, or of a line of a batch `<batch id>:<line>`. A record that
            comes twice counts once.
        request_id: What its client was told.
        account: Whose it was.
        key: Which key of the account, by its public id.
        model: In catalogue spelling.
        dialect: As in `Dialect.name`.
        job_class: `interactive` or `batch`.
        batch_id: Of which batch it was a line.
        zdr: It required zero data retention.
        began_at: Unix seconds.
        status: HTTP status; 499 if the client left.
        code: Of the error.
        ttft_ms, queue_ms, duration_ms: From its arrival to the first token, to a worker's
            acceptance, to its end.
        usage: What the client was told; of a request that was aborted, what was really generated.
        microcents: What that costs, in millionths of a cent.
        attempts: How many workers it took.
    """

    record_id: str
    request_id: str
    account: str
    key: str
    model: str
    dialect: str
    job_class: Literal["interactive", "batch"] = "interactive"
    batch_id: str | None = None
    stream: bool = False
    zdr: bool = False
    began_at: float
    status: int
    outcome: UsageOutcome
    code: str | None = None
    finish_reason: str | None = None
    ttft_ms: float | None = None
    queue_ms: float | None = None
    duration_ms: float = 0.0
    usage: Usage = Usage()
    microcents: int = 0
    attempts: int = 1
    worker: str | None = None

    @property
    def is_sound(self) -> bool:
        """Whether it can be of this program: a queue may hold what somebody else has put there."""
        large = (*msgspec.structs.astuple(self.usage), self.microcents)
        small = (self.status, self.attempts)
        return (
            bool(self.record_id)
            and 0 <= self.began_at < _LATEST
            and all(0 <= figure < _LARGEST for figure in large)
            and all(0 <= figure < _LARGE for figure in small)
        )
