"""What alembic runs for each command: the migrations, on the connection that it was handed.

`ingress.stores.schema` opens it and ends its transaction. To write a new revision, run
`alembic revision --autogenerate -m "..."` in the repository; for that, it makes a database of its
own.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import sqlalchemy as sa
from alembic import context

from ingress.stores.tables import metadata


def migrate(connection: sa.Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        transactional_ddl=True,  # SQLite's, too: see how `ingress.stores.database` begins them
        render_as_batch=True,  # SQLite cannot alter most of a table
        user_module_prefix="tables.",
    )
    with context.begin_transaction():
        context.run_migrations()


async def with_a_new_database() -> None:
    from ingress.stores import schema
    from ingress.stores.database import open_database

    with tempfile.TemporaryDirectory() as directory:
        database = open_database(f"sqlite:///{Path(directory) / 'new.db'}")
        try:
            await schema.upgrade(database)
            async with database.engine.begin() as connection:
                await connection.run_sync(migrate)
        finally:
            await database.close()


given = context.config.attributes.get("connection")
if given is None:
    asyncio.run(with_a_new_database())
else:
    migrate(given)
