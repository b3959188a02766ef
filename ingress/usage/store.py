"""The port of the usage store: records of requests, and sums of them. Plain values otherwise.

Rules every store obeys (the contract suite checks them):

* A record that comes twice is kept once; the first one stays.
* A group is kept whole or not at all.
* Sums are those of the records: nothing is counted ahead and nothing is rounded.

All methods raise `ingress.stores.base.StoreUnavailable` where the database cannot be reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from schemas.delta import Usage
from schemas.usage_record import UsageRecord

Group: TypeAlias = Literal["day", "model", "account", "key"]
"""What sums are parted by; days are those of UTC."""

GROUPS: Final[tuple[Group, ...]] = ("day", "model", "account", "key")


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which records; None is all.

    Attributes:
        start, end: Unix seconds of their beginning: from `start` on and before `end`.
    """

    start: float | None = None
    end: float | None = None
    account: str | None = None
    key: str | None = None
    model: str | None = None


class UsageSum(msgspec.Struct, frozen=True, kw_only=True):
    """What several requests used.

    Attributes:
        day: In ISO 8601. This, `model`, `account` and `key` are None unless sums are parted by it.
        requests: How many there were, whatever their end.
        cancelled, failed: Those of them that did not complete.
        usage: Of all together.
        microcents: What that costs, in millionths of a cent.
    """

    day: str | None = None
    model: str | None = None
    account: str | None = None
    key: str | None = None
    requests: int = 0
    cancelled: int = 0
    failed: int = 0
    usage: Usage = Usage()
    microcents: int = 0


class UsageStore(Protocol):
    """Where records are kept."""

    async def add(self, records: Sequence[UsageRecord]) -> int:
        """Keep records; returns how many were new."""
        ...

    async def sums(
        self,
        which: Selection,
        by: Sequence[Group] = (),
        *,
        limit: int | None = None,
        after: Sequence[str] | None = None,
    ) -> Sequence[UsageSum]:
        """One sum for each combination of what they are parted by, in that order.

        Without `by` it is one of all, also where there are none. With `limit` there are no more
        than that; with `after`, only those that come after that combination, which need not exist.
        """
        ...

    async def records(
        self, which: Selection, *, limit: int, after: str | None = None
    ) -> Sequence[UsageRecord]:
        """The newest first, older ones than the record with the id `after`.

        None is older than a record that is not there.
        """
        ...

    async def forget(self, before: float) -> int:
        """Delete those that began before then; returns how many there were."""
        ...
