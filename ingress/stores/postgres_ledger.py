"""The ledger in PostgreSQL: one row per account, read and written whole.

The rows of an exchange are locked in the order of the accounts' ids, so no two exchanges wait for
each other; and the time is asked for when they are. A crash of the database may cost what was told
in its last moments: nothing else is written so often, and most of it is forgotten in a minute.

Every request of an account with limits comes by here. So the driver is used directly, on a
connection of its own, which costs a fifth of what the engine above it does.

Source: the port, `ingress.limits.ledger`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from ingress.limits.ledger import HOLD_S, take_turns
from ingress.limits.state import AccountState, Outcome, Turn
from ingress.limits.window import MINUTE, Window
from ingress.stores.base import StoreUnavailable
from ingress.stores.database import UNAVAILABLE, Database
from ingress.stores.tables import AnyText

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AccountState).decode
_ID: Final = AnyText()

# The clock is read outside of the part that waits for locks, row by row; the last one counts.
_LOCK: Final = """
    WITH locked AS MATERIALIZED (
        SELECT account_id, state FROM account_states
        WHERE account_id = ANY($1) ORDER BY account_id FOR UPDATE
    )
    SELECT account_id, state, extract(epoch FROM clock_timestamp())::float8 AS now FROM locked
"""
_WRITE: Final = """
    UPDATE account_states SET state = new.state
    FROM unnest($1::text[], $2::bytea[]) AS new (account_id, state)
    WHERE account_states.account_id = new.account_id
"""
_ADD: Final = """
    INSERT INTO account_states (account_id, state)
    SELECT account_id, $2 FROM unnest($1::text[]) AS new (account_id) ORDER BY account_id
    ON CONFLICT DO NOTHING
"""


class PostgresLedger:
    """A `Ledger` in PostgreSQL.

    Args:
        hold_s: How long the hold of a process is believed that says nothing more.
    """

    def __init__(
        self, database: Database, *, hold_s: float = HOLD_S, window: Window = MINUTE
    ) -> None:
        self._database = database
        self._hold_s = hold_s
        self._window = window
        self._one_at_a_time = asyncio.Lock()
        self._connection: AsyncConnection | None = None
        self._driver: Any = None

    async def exchange(self, process: str, turns: Sequence[Turn]) -> Sequence[Outcome]:
        from asyncpg import InterfaceError, PostgresError

        async with self._one_at_a_time:
            try:
                return await self._exchange(process, turns)
            except (PostgresError, InterfaceError, SQLAlchemyError, OSError) as error:
                await self.close()
                reason = str(error).partition("\n")[0]
                raise StoreUnavailable(
                    UNAVAILABLE, diagnostic=f"{type(error).__name__}: {reason}"
                ) from error
            except BaseException:
                await self.close()  # it may be in the middle of something
                raise

    async def _exchange(self, process: str, turns: Sequence[Turn]) -> Sequence[Outcome]:
        driver = await self._connected()
        names = {self._escaped(turn.account_id): turn.account_id for turn in turns}
        while True:
            async with driver.transaction(isolation="read_committed"):
                rows = await driver.fetch(_LOCK, list(names))
                if len(rows) == len(names):
                    states = {names[row["account_id"]]: _decode(row["state"]) for row in rows}
                    outcomes = take_turns(
                        states,
                        process,
                        turns,
                        now=max(row["now"] for row in rows),
                        hold_s=self._hold_s,
                        window=self._window,
                    )
                    changed = [_encode(states[name]) for name in names.values()]
                    await driver.execute(_WRITE, list(names), changed)
                    return outcomes
            # By itself: whoever waits to add a row must hold no other.
            await driver.execute(_ADD, list(names), _encode(AccountState()))

    async def _connected(self) -> Any:
        if self._driver is None or self._driver.is_closed():
            await self.close()
            self._connection = await self._database.engine.connect()
            self._driver = (await self._connection.get_raw_connection()).driver_connection
            await self._driver.execute("SET synchronous_commit = off")
        return self._driver

    async def close(self) -> None:
        connection, self._connection, self._driver = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(SQLAlchemyError, OSError):
                await connection.invalidate()  # nobody else is to commit as it does
                await connection.close()

    def _escaped(self, account_id: str) -> str:
        """As the column has it."""
        escaped = _ID.process_bind_param(account_id, self._database.engine.dialect)
        assert escaped is not None
        return escaped
