"""What time it is at a database server, whose clock all processes of a deployment share."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from ingress.stores.database import Database


async def server_time(database: Database) -> float:
    """Unix seconds, of a PostgreSQL; SQLite has no clock of its own."""

    async def work(connection: AsyncConnection) -> datetime:
        result = await connection.execute(sa.select(sa.func.clock_timestamp()))
        found: datetime = result.scalar_one()
        return found

    return (await database.read(work)).timestamp()
