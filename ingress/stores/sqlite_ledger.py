"""The ledger in an SQLite database: one row per account, read and written whole.

Exchanges of all processes wait for one another, for there is one writer at a time; and all of them
are on one machine, so its clock is theirs.

Source: the port, `ingress.limits.ledger`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from ingress.limits.ledger import HOLD_S, take_turns
from ingress.limits.state import AccountState, Outcome, Turn
from ingress.limits.window import MINUTE, Window
from ingress.stores.database import Database
from ingress.stores.tables import account_states

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AccountState).decode

_rows: Final = account_states.c


class SqliteLedger:
    """A `Ledger` in SQLite.

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
        ids = [turn.account_id for turn in turns]

        async def work(connection: AsyncConnection) -> Sequence[Outcome]:
            found = await connection.execute(
                sa.select(_rows.account_id, _rows.state).where(_rows.account_id.in_(ids))
            )
            states = dict.fromkeys(ids, AccountState())
            states.update((row.account_id, _decode(row.state)) for row in found)
            outcomes = take_turns(
                states,
                process,
                turns,
                now=time.time(),
                hold_s=self._hold_s,
                window=self._window,
            )
            insert = sqlite.insert(account_states)
            write = insert.on_conflict_do_update(set_={"state": insert.excluded.state})
            changed = [{"account_id": name, "state": _encode(states[name])} for name in ids]
            await connection.execute(write, changed)
            return outcomes

        return await self._database.write(work)

    async def close(self) -> None:
        """The database is its owner's."""
