"""The ledger in an SQL database: one row per account, read and written whole.

The rows of an exchange are locked in the order of the accounts' ids, so no two exchanges wait for
each other. PostgreSQL's clock is that of all processes; of SQLite there are only processes of one
machine. A crash of the database may cost what was told in its last moments: nothing else waits for
its disk so often, and windows and holds are forgotten within a minute anyway.

Source: the port, `ingress.limits.ledger`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from ingress.limits.ledger import HOLD_S
from ingress.limits.state import MINUTE, AccountState, Outcome, Turn, Window, take_turn
from ingress.stores.database import Database
from ingress.stores.tables import account_states

_UNUSED: Final = AccountState()
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AccountState).decode

_rows: Final = account_states.c
_UPDATE: Final = (
    sa.update(account_states)
    .where(_rows.account_id == sa.bindparam("account"))
    .values(state=sa.bindparam("new_state"))
)


class SqlLedger:
    """A `Ledger` in an SQL database.

    Args:
        hold_s: How long the hold of a process is believed that says nothing more.
    """

    def __init__(
        self, database: Database, *, hold_s: float = HOLD_S, window: Window = MINUTE
    ) -> None:
        self._database = database
        self._hold_s = hold_s
        self._window = window

    async def exchange(self, process: str, turns: Sequence[Turn]) -> Sequence[Outcome]:
        ids = sorted({turn.account_id for turn in turns})

        async def work(connection: AsyncConnection) -> Sequence[Outcome] | None:
            rows, now = await self._locked(connection, ids)
            if len(rows) < len(ids):
                return None
            outcomes = []
            for turn in turns:
                outcome = take_turn(
                    rows[turn.account_id],
                    turn,
                    process,
                    now=now,
                    hold_s=self._hold_s,
                    window=self._window,
                )
                rows[turn.account_id] = outcome.state
                outcomes.append(outcome)
            changed = [{"account": name, "new_state": _encode(rows[name])} for name in ids]
            await connection.execute(_UPDATE, changed)
            return outcomes

        while True:
            outcomes = await self._database.write(work)
            if outcomes is not None:
                return outcomes
            # By a transaction of its own: one that waits to add a row must hold no other.
            await self._add(ids)

    async def _locked(
        self, connection: AsyncConnection, ids: Sequence[str]
    ) -> tuple[dict[str, AccountState], float]:
        """The states, ours until the transaction ends, and the time since they are."""
        if self._database.is_sqlite:
            found = await connection.execute(
                sa.select(_rows.account_id, _rows.state).where(_rows.account_id.in_(ids))
            )
            now = time.time()
            return {row.account_id: _decode(row.state) for row in found}, now
        rows = (await connection.execute(_LOCKING, {"ids": ids})).all()
        states = {row.account_id: _decode(row.state) for row in rows}
        return states, max((row.now for row in rows), default=0.0)

    async def _add(self, ids: Sequence[str]) -> None:
        insert = sqlite.insert if self._database.is_sqlite else postgresql.insert
        rows: list[dict[str, Any]] = [
            {"account_id": name, "state": _encode(_UNUSED)} for name in ids
        ]

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(insert(account_states).on_conflict_do_nothing(), rows)

        await self._database.write(work, repeatable=True)


def _locking() -> sa.Select[Any]:
    """Locks rows in order, and then asks for the time: one that waited for a row waited before.

    That a commit does not wait for the disk is said on the way, which saves one.
    """
    locked = (
        sa.select(_rows.account_id, _rows.state)
        .where(_rows.account_id.in_(sa.bindparam("ids", expanding=True)))
        .order_by(_rows.account_id)
        .with_for_update()
        .cte("locked")
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )
    return sa.select(
        locked.c.account_id,
        locked.c.state,
        sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double).label("now"),
        sa.func.set_config("synchronous_commit", "off", True),
    )


_LOCKING: Final = _locking()
