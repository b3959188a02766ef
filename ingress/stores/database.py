"""A database behind a URL: its engine, its transactions, and what its errors mean.

Knows SQLite and PostgreSQL, and what is particular to each; knows no table.

What is repeated and what is not: a transaction that the database has rolled back is run again. If
the connection breaks while it commits, nobody can tell whether it has happened; then it is run
again only if that makes no difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.util import await_only

from ingress.stores.base import StoreUnavailable

T = TypeVar("T")
Work = Callable[[AsyncConnection], Awaitable[T]]

UNAVAILABLE: Final = "The store of files and batches is not available."

_ATTEMPTS: Final = 6
_LEAST_PAUSE_S: Final = 0.02
_ROLLED_BACK: Final = ("40001", "40P01")
"""SQLSTATE of a serialisation failure and a deadlock: the other transaction went through."""

_CONNECT_TIMEOUT_S: Final = 10.0
_COMMAND_TIMEOUT_S: Final = 60.0
_POOL_SIZE: Final = 8
_BUSY_TIMEOUT_S: Final = 15.0
_POLL_S: Final = 0.02
_LARGEST_WAL_BYTES: Final = 64 << 20
_VACUUMED_PAGES: Final = 2000


class BadDatabaseUrl(ValueError):
    """No database that we know can be at this URL; the text says why, without the URL."""


class Database:
    """Runs functions of a connection as transactions. Made by `open_database`."""

    def __init__(self, engine: AsyncEngine, *, one_writer: bool) -> None:
        self.engine = engine
        # SQLite lets the writers of one file wait for one another by polling, in no order.
        # Those of this process queue here instead.
        self._writing = asyncio.Semaphore(1) if one_writer else None

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    async def read(self, work: Work[T]) -> T:
        """Run statements that change nothing, each of which sees what is committed by then."""
        return await self._whole(self._retried(work, self._reading, repeatable=True))

    async def write(self, work: Work[T], *, repeatable: bool = False) -> T:
        """Run one transaction.

        Args:
            work: May run more than once.
            repeatable: Whether the transaction may take place twice.
        """
        return await self._whole(self._retried(work, self._transaction, repeatable=repeatable))

    async def rebuild(self, work: Work[T]) -> T:
        """Run one transaction that may replace tables.

        SQLite alters most of a table by making another and dropping the first. With foreign keys
        on, the rows of other tables that belong to its rows would go with it.
        """
        return await self._whole(self._retried(work, self._rebuilding, repeatable=False))

    async def give_room_back(self) -> None:
        """Return what was deleted to the file system, as far as the database does not by itself."""
        if self._writing is None:
            return
        left: int | None = None
        # In small parts, so that nobody waits long to write. What fails is only delayed: the room
        # is used again, or given back next time.
        with contextlib.suppress(SQLAlchemyError, sqlite3.Error):
            while left != 0:
                before, left = left, await _to_its_end(self._give_some_back(self._writing))
                if before is not None and left >= before:
                    return  # the file was not made by us and cannot shrink

    async def _give_some_back(self, writing: asyncio.Semaphore) -> int:
        """Shrink the file a little; returns how many pages were free before."""
        async with writing, self._reading() as connection:
            free: int = (await connection.exec_driver_sql("PRAGMA freelist_count")).scalar_one()
            if free:
                driver = (await connection.get_raw_connection()).driver_connection
                assert driver is not None
                # Only a script is run to its end: each step of this statement frees one page.
                await driver.executescript(f"PRAGMA incremental_vacuum({_VACUUMED_PAGES})")
            return free

    async def close(self) -> None:
        await self.engine.dispose()

    async def _whole(self, running: Coroutine[Any, Any, T]) -> T:
        return await (_to_its_end(running) if self.is_sqlite else running)

    async def _retried(
        self,
        work: Work[T],
        begin: Callable[[], contextlib.AbstractAsyncContextManager[AsyncConnection]],
        *,
        repeatable: bool,
    ) -> T:
        for attempt in range(1, _ATTEMPTS + 1):
            worked = False
            try:
                async with begin() as connection:
                    result = await work(connection)
                    worked = True
                return result
            except IntegrityError:
                raise  # of ours: the database does as it was told
            except (SQLAlchemyError, OSError) as error:
                rolled_back = _sqlstate(error) in _ROLLED_BACK
                lost = self._lost_connection(error) and (repeatable or not worked)
                if attempt == _ATTEMPTS or not (rolled_back or lost):
                    raise _unavailable(error) from error
            # Which of several goes first next time is chance's; a restart takes some seconds.
            await asyncio.sleep(_LEAST_PAUSE_S * 2**attempt * random.uniform(0.5, 1))
        raise AssertionError("unreachable")

    def _lost_connection(self, error: Exception) -> bool:
        if self.is_sqlite:
            return False  # it has waited already
        state = _sqlstate(error)
        if state is not None:  # 57P01 to 57P03: it is shutting down or starting
            return state.startswith(("08", "57P"))
        if isinstance(error, DBAPIError):
            return error.connection_invalidated
        return isinstance(error, OSError) and not isinstance(error, TimeoutError)

    @contextlib.asynccontextmanager
    async def _reading(self) -> AsyncIterator[AsyncConnection]:
        async with self.engine.connect() as connection:
            yield await connection.execution_options(isolation_level="AUTOCOMMIT")

    @contextlib.asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        async with self._writing or contextlib.nullcontext(), self.engine.begin() as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def _rebuilding(self) -> AsyncIterator[AsyncConnection]:
        if self._writing is None:
            async with self._transaction() as connection:
                yield connection
            return
        async with self._writing, self.engine.connect() as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            assert driver is not None
            await driver.executescript("PRAGMA foreign_keys = OFF")  # not while in a transaction
            try:
                async with connection.begin():
                    yield connection
            finally:
                await driver.executescript("PRAGMA foreign_keys = ON")


async def _to_its_end(running: Coroutine[Any, Any, T]) -> T:
    """What `running` returns. It ends also when whoever waits for it is cancelled.

    An SQLite connection that is left in the middle of something is closed by the driver at some
    later time: until then the database may be locked, and if the loop ends first, it never does.
    """
    task = asyncio.create_task(running)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        raise


def open_database(url: str, *, busy_timeout_s: float = _BUSY_TIMEOUT_S) -> Database:
    """The database at a URL such as `sqlite:////var/lib/headrace.db` or `postgresql://host/name`.

    A driver in the scheme (`postgresql+psycopg`) says nothing. Nothing is connected yet.

    Raises:
        BadDatabaseUrl: It cannot be used. For PostgreSQL, that may show at the first connection.
        StoreUnavailable: The file of an SQLite database can be neither found nor made.
    """
    scheme, colon, rest = url.partition("://")
    kind = scheme.partition("+")[0].lower()
    if not colon:
        raise BadDatabaseUrl("A database URL begins with sqlite:/// or postgresql://.")
    if kind == "sqlite":
        return Database(_sqlite(f"sqlite://{rest}", busy_timeout_s), one_writer=True)
    if kind in ("postgresql", "postgres"):
        return Database(_postgresql(f"postgresql://{rest}"), one_writer=False)
    raise BadDatabaseUrl(f"There is no store for {kind!r}, only for sqlite and postgresql.")


# --- SQLite ---------------------------------------------------------------------------------------


def _sqlite(url: str, busy_timeout_s: float) -> AsyncEngine:
    parts = sa.make_url(url)
    if not parts.database or parts.database == ":memory:" or parts.host or parts.query:
        raise BadDatabaseUrl(
            "An SQLite URL is sqlite:/// and the path of a file, which begins with another slash "
            "if it is absolute."
        )
    path = Path(parts.database)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Nobody else is to read it: it holds what models answered. A file that is there is not
        # opened: POSIX drops the locks of a whole process when it closes any descriptor of a file.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        if not os.access(path, os.R_OK | os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise StoreUnavailable(
            "The database cannot be opened.", diagnostic=f"{path}: {error.strerror}"
        ) from error
    engine = create_async_engine(
        sa.URL.create("sqlite+aiosqlite", database=str(path)),
        pool_size=_POOL_SIZE,
        max_overflow=0,
        hide_parameters=True,
        connect_args={"timeout": busy_timeout_s, "isolation_level": None},
    )

    @sa.event.listens_for(engine.sync_engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        cursor = connection.cursor()
        # Only once, for it takes a lock. Readers see what was committed while somebody writes, and
        # a commit is one fsync. The room of what is deleted can be given back if that is said
        # before there is a first table.
        cursor.execute("PRAGMA journal_mode")
        if cursor.fetchone()[0] != "wal":
            cursor.execute("PRAGMA auto_vacuum = INCREMENTAL")
            _use_wal(cursor, busy_timeout_s)
        # What was told to a client outlives a power cut too, not only a killed process.
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute(f"PRAGMA journal_size_limit = {_LARGEST_WAL_BYTES}")
        cursor.close()

    @sa.event.listens_for(engine.sync_engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # A transaction that first reads and then wants to write would fail at once if somebody
        # else wrote in between. So it claims the right to write when it begins.
        if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _use_wal(cursor: Any, timeout_s: float) -> None:
    """Let readers see what is committed while somebody writes.

    SQLite does not wait for its busy timeout where two change the journal of a new file at once
    (each would hold what the other waits for), so this does.
    """
    over_at = time.monotonic() + timeout_s
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > over_at:
                raise
            await_only(asyncio.sleep(_POLL_S * random.uniform(0.5, 1)))
        else:
            return


# --- PostgreSQL -----------------------------------------------------------------------------------


def _postgresql(url: str) -> AsyncEngine:
    import asyncpg

    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    # The driver understands what libpq does (sslmode, several hosts, …) but for this one.
    try:
        pool_size = int(query.pop("pool_size", _POOL_SIZE))
        connect_timeout_s = float(query.pop("connect_timeout", _CONNECT_TIMEOUT_S))
    except ValueError as error:
        raise BadDatabaseUrl("pool_size and connect_timeout are numbers.") from error
    if pool_size < 1:
        raise BadDatabaseUrl("pool_size is at least 1.")
    query.setdefault("application_name", "headrace")
    dsn = urlunsplit(parts._replace(query=urlencode(query)))

    async def connect() -> Any:
        try:
            return await asyncpg.connect(
                dsn, timeout=connect_timeout_s, command_timeout=_COMMAND_TIMEOUT_S
            )
        except asyncpg.ClientConfigurationError as error:
            raise BadDatabaseUrl(f"{error}.") from None
        except ValueError:  # whose text may have a part of the password in it
            raise BadDatabaseUrl(
                "The driver cannot read the PostgreSQL URL. Check its port and its options, and "
                "that odd characters of the password are percent-encoded."
            ) from None

    return create_async_engine(
        "postgresql+asyncpg://",
        async_creator=connect,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=_CONNECT_TIMEOUT_S,
        pool_pre_ping=True,
        hide_parameters=True,
        isolation_level="READ COMMITTED",
    )


# --- Errors ---------------------------------------------------------------------------------------


def _sqlstate(error: Exception) -> str | None:
    cause = error.orig if isinstance(error, DBAPIError) else error
    return getattr(cause, "sqlstate", None)


def _unavailable(error: Exception) -> StoreUnavailable:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    reason = str(cause).partition("\n")[0]
    return StoreUnavailable(
        UNAVAILABLE,
        diagnostic=f"{type(cause).__name__}: {reason}",
    )
