"""Databases on their way from one version's tables to another's, with something in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from click.testing import CliRunner, Result

from ingress.__main__ import main
from ingress.stores import schema, tables
from ingress.stores.base import Idempotency, StoreUnavailable
from ingress.stores.database import Database, open_database
from ingress.stores.schema import SchemaMismatch, UnknownRevision
from ingress.stores.sql import SqlStore
from tests.contract.store_suite import a_batch, a_file, a_result, ended
from tests.fixtures.postgres import Postgres

NEWEST = schema.revisions()[-1]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, postgres: Postgres, tmp_path: Path) -> Iterator[str]:
    """A database without tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'headrace.db'}"
        return
    url = postgres.new_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    database = open_database(url)
    yield database
    await database.close()


async def names_in(database: Database) -> set[str]:
    async with database.engine.connect() as connection:
        return set(await connection.run_sync(lambda c: sa.inspect(c).get_table_names()))


async def execute(database: Database, statement: str) -> None:
    async with database.engine.begin() as connection:
        await connection.execute(sa.text(statement))


async def test_data_survives_the_way_up_and_down(database: Database, url: str) -> None:
    await schema.upgrade(database, "0001")
    assert await names_in(database) == {"alembic_version", "batches", "files", "results"}
    # What the first version's program wrote: of the tables of today it knows these.
    old, file = SqlStore(database), a_file(1, filename="\ud800\x00", expires_at=1_800_000_000)
    batch = a_batch(1, metadata={"a": "\x00"})
    await old.add_file(file)
    await old.add_batch(batch, max_unfinished=9)
    claimed = await old.claim("owner", now=0, lease_s=30)
    assert claimed == batch
    await old.commit(batch.batch_id, "owner", [a_result(line) for line in (1, 2)])
    before = await old.batch("ours", batch.batch_id)

    await schema.upgrade(database)
    new = await SqlStore.open(url)
    assert await new.file("ours", file.file_id, 0) == file
    assert await new.batch("ours", batch.batch_id) == before
    assert [line async for line in new.committed(batch.batch_id)] == [1, 2]
    assert await new.commit(batch.batch_id, "owner", [a_result(2), a_result(3)]) == 1
    key = Idempotency(key="key", digest=b"digest", since=0)
    later = a_batch(2)
    assert await new.add_batch(later, idempotency=key, max_unfinished=9) == later
    await new.close()

    await schema.downgrade(database, "0001")
    assert "idempotency" not in await names_in(database)
    assert [line async for line in old.committed(batch.batch_id)] == [1, 2, 3]
    assert await old.batch("ours", later.batch_id) == later
    assert await old.change_batch(later.batch_id, ended) == ended(later)

    await schema.upgrade(database)
    assert await old.batch("ours", later.batch_id) == ended(later)
    await schema.downgrade(database, "base")
    assert await names_in(database) == {"alembic_version"}


async def test_a_migration_that_replaces_a_table_keeps_what_belongs_to_it(
    database: Database, url: str
) -> None:
    await schema.upgrade(database)
    store, key = SqlStore(database), Idempotency(key="key", digest=b"digest", since=0)
    batch = a_batch(1)
    await store.add_batch(batch, idempotency=key, max_unfinished=9)
    await store.claim("owner", now=0, lease_s=30)
    await store.commit(batch.batch_id, "owner", [a_result(1)])

    def change_a_column(connection: sa.Connection) -> None:
        operations = Operations(MigrationContext.configure(connection))
        with operations.batch_alter_table("batches", recreate="auto") as change:
            change.alter_column("endpoint", nullable=True)

    await database.rebuild(lambda connection: connection.run_sync(change_a_column))
    assert [line async for line in store.committed(batch.batch_id)] == [1]
    assert (await store.add_batch(a_batch(2), idempotency=key, max_unfinished=9)).batch_id == (
        batch.batch_id
    )
    # and foreign keys are watched again
    await store.delete_batch("ours", batch.batch_id, lambda _: None)
    assert [line async for line in store.committed(batch.batch_id)] == []


async def test_the_migrated_tables_are_those_the_program_uses(database: Database) -> None:
    await schema.upgrade(database)

    def differences(connection: sa.Connection) -> list[object]:
        return list(compare_metadata(MigrationContext.configure(connection), tables.metadata))

    def constraints(connection: sa.Connection) -> dict[str, object]:
        found, place = sa.inspect(connection), {}
        for name in found.get_table_names():
            place[name] = (
                found.get_pk_constraint(name),
                found.get_foreign_keys(name),
                {
                    index["name"]: (
                        index["column_names"],
                        {k: str(v) for k, v in index.get("dialect_options", {}).items()},
                    )
                    for index in found.get_indexes(name)
                },
                {
                    column["name"]: (str(column["type"]), column["nullable"])
                    for column in found.get_columns(name)
                },
            )
        place.pop("alembic_version", None)
        return place

    async with database.engine.begin() as connection:
        assert await connection.run_sync(differences) == []
        migrated = await connection.run_sync(constraints)
        # compared by alembic are not: primary keys, conditions of indexes, collations
        await connection.run_sync(tables.metadata.drop_all)
        await connection.run_sync(tables.metadata.create_all)
        assert await connection.run_sync(constraints) == migrated


def test_the_revisions_are_those_that_files_are_named_after() -> None:
    config = Config()
    config.set_main_option("script_location", str(schema.MIGRATIONS))
    scripts = ScriptDirectory.from_config(config)
    newest_first = [script.revision for script in scripts.walk_revisions()]
    assert list(schema.revisions()) == newest_first[::-1]
    assert scripts.get_heads() == [schema.revisions()[-1]]


async def test_many_may_migrate_at_once(database: Database, url: str) -> None:
    others = [open_database(url) for _ in range(5)]
    await asyncio.gather(*(schema.upgrade(each) for each in (database, *others)))
    assert (await schema.status(database)).revision == NEWEST
    for other in others:
        await other.close()


async def test_a_migration_that_fails_changes_nothing(database: Database) -> None:
    await schema.upgrade(database, "0001")
    # The last thing that the next revision makes is there already.
    await execute(database, "CREATE INDEX batches_results_blob ON batches (created_at)")
    with pytest.raises(Exception, match="not available"):
        await schema.upgrade(database, "0002")
    assert (await schema.status(database)).revision == "0001"
    assert "idempotency" not in await names_in(database)
    await execute(database, "DROP INDEX batches_results_blob")
    await schema.upgrade(database)
    assert (await schema.status(database)).revision == NEWEST


async def test_older_tables_are_brought_up_to_date_or_refused(database: Database, url: str) -> None:
    await schema.upgrade(database, "0001")
    if database.is_sqlite:
        await (await SqlStore.open(url)).close()
        assert (await schema.status(database)).revision == NEWEST
        return
    with pytest.raises(SchemaMismatch, match=rf"0001, .* needs {NEWEST}\. Run"):
        await SqlStore.open(url)
    await schema.downgrade(database, "base")
    with pytest.raises(SchemaMismatch, match=r"no tables yet\. Run: headrace database upgrade"):
        await SqlStore.open(url)


async def test_tables_can_be_looked_at_later(database: Database, url: str) -> None:
    store = SqlStore.at(url)
    for attempt in (store.file("ours", "file-1", 0), store.add_file(a_file(1))):
        with pytest.raises(StoreUnavailable) as caught:
            await attempt
        assert "headrace database upgrade" in str(caught.value.diagnostic)
        assert "upgrade" not in caught.value.message
    await schema.upgrade(database)
    await store.add_file(a_file(1))
    assert await store.file("ours", a_file(1).file_id, 0) == a_file(1)
    await store.close()


async def test_newer_tables_are_refused(database: Database, url: str) -> None:
    await schema.upgrade(database)
    await execute(database, "UPDATE alembic_version SET version_num = '0999'")
    attempts = (
        SqlStore.open(url),
        schema.upgrade(database),
        schema.downgrade(database, "0001"),
    )
    for attempt in attempts:
        with pytest.raises(SchemaMismatch, match=f"0999, which .* a newer one .* up to {NEWEST}"):
            await attempt
    assert "idempotency" in await names_in(database)


@pytest.mark.parametrize("revision", ["0777", "nothing", "base:head:base", ""])
async def test_an_unknown_revision_is_refused(database: Database, revision: str) -> None:
    await schema.upgrade(database, "0001")
    with pytest.raises(UnknownRevision):
        await schema.upgrade(database, revision)
    with pytest.raises(UnknownRevision):
        await schema.downgrade(database, revision)
    assert (await schema.status(database)).revision == "0001"


def headrace(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["database", *arguments])


def test_the_command_line_goes_up_and_down(url: str) -> None:
    said = headrace("status", "--database", url)
    assert said.exit_code == 1
    assert "no tables" in said.output
    said = headrace("upgrade", "--database", url, "0001")
    assert (said.exit_code, said.output) == (
        0,
        f"The database is at revision 0001. The newest is {NEWEST}.\n",
    )
    said = headrace("status", "--database", url)
    assert said.exit_code == 1
    assert "Run: headrace database upgrade" in said.output
    for command in ("upgrade", "upgrade", "status"):
        said = headrace(command, "--database", url)
        assert (said.exit_code, said.output) == (
            0,
            f"The database is at revision {NEWEST}, the newest.\n",
        )
    said = headrace("downgrade", "--database", url, "base")
    assert (said.exit_code, said.output) == (
        0,
        f"The database has no tables. The newest revision is {NEWEST}.\n",
    )
    said = headrace("upgrade", "--database", url, "0777")
    assert said.exit_code == 1
    assert "0777" in said.output
    assert isinstance(said.exception, SystemExit), "a message, not a traceback"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("mysql://localhost/x", "no store for 'mysql'"),
        ("/var/lib/headrace.db", "begins with sqlite:/// or postgresql://"),
        ("sqlite://", "path of a file"),
        ("sqlite:///:memory:", "path of a file"),
        ("sqlite://host/path", "path of a file"),
        ("sqlite:////dev/null/x.db", "/dev/null"),
        ("postgresql://127.0.0.1:1/x?pool_size=many", "pool_size"),
        ("postgresql://127.0.0.1:1/x?pool_size=0", "pool_size"),
        ("postgresql://user:secret@127.0.0.1:1/x", "not available"),
        ("postgresql://user:secret@127.0.0.1:port/x", "--database"),
        ("postgresql://user:secret@127.0.0.1/x?sslmode=sometimes", "--database"),
        ("postgresql://user:secret@nowhere.invalid/x", "not available"),
    ],
)
def test_a_url_that_cannot_be_used_is_explained(wrong: str, said: str) -> None:
    result = headrace("status", "--database", wrong)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (1, 2)
    assert said in result.output
    assert "secret" not in result.output
