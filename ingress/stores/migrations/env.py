"""What alembic runs for each command: the migrations, on the connection that it was handed.

`ingress.stores.schema` opens it and ends its transaction. To write a new revision after a change of
`ingress.stores.tables`, compare with a database that has the tables of before:

    headrace database upgrade --database sqlite:////tmp/before.db     # before the change
    alembic -x database=sqlite:////tmp/before.db revision --autogenerate --rev-id 0003 -m "..."
"""

from __future__ import annotations

import asyncio

import sqlalchemy as sa
from alembic import context

from ingress.stores.database import open_database
from ingress.stores.tables import metadata


def migrate(connection: sa.Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=True,  # SQLite cannot alter most of a table
        user_module_prefix="tables.",
    )
    with context.begin_transaction():
        context.run_migrations()


async def migrate_named() -> None:
    database = open_database(context.get_x_argument(as_dictionary=True)["database"])
    try:
        async with database.engine.begin() as connection:
            await connection.run_sync(migrate)
    finally:
        await database.close()


given = context.config.attributes.get("connection")
if given is None:
    asyncio.run(migrate_named())
else:
    migrate(given)
