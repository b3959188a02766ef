"""The database, and the blob store: whether records and contents can be kept."""

from __future__ import annotations

import time

from ingress.doctor.finding import Finding, clock_finding, fail, ok
from ingress.stores import schema
from ingress.stores.base import StoreUnavailable
from ingress.stores.clock import server_time
from ingress.stores.database import BadDatabaseUrl, Database, open_database
from schemas.blobs.base import BlobMissing, BlobStore, BlobStoreUnavailable, probe_key


async def store_findings(url: str) -> list[Finding]:
    """Whether the database is there, has the tables of this program, and agrees about the time."""
    try:
        database = open_database(url)
    except (BadDatabaseUrl, StoreUnavailable) as error:
        return [fail("database", _why(error), "Check HEADRACE_DATABASE.")]
    try:
        return await _looked_at(database)
    except (BadDatabaseUrl, StoreUnavailable) as error:
        advice = "Check host, port, user and password in HEADRACE_DATABASE, and that it runs."
        return [fail("database", _why(error), advice)]
    finally:
        await database.close()


async def _looked_at(database: Database) -> list[Finding]:
    at = await schema.status(database)
    kind = "SQLite" if database.is_sqlite else "PostgreSQL"
    try:
        if not (database.is_sqlite and at.revision is None):  # who opens such a file makes them
            schema.require_current(at)
    except schema.SchemaMismatch as error:
        advice = "Run: headrace database upgrade" if at.known else "Use a program that is as new."
        return [fail("database", str(error), advice)]
    findings = [ok("database", f"{kind}, its tables at revision {at.revision or at.newest}")]
    if not database.is_sqlite:
        findings.append(await _clock(database))
    return findings


async def _clock(database: Database) -> Finding:
    before = time.time()
    theirs = await server_time(database)
    after = time.time()
    return clock_finding(
        "clock",
        (before + after) / 2 - theirs,
        "the database's",
        exact_to_s=(after - before) / 2,
    )


def _why(error: BadDatabaseUrl | StoreUnavailable) -> str:
    if isinstance(error, StoreUnavailable):
        return error.diagnostic or error.message
    return str(error)


async def blob_findings(blobs: BlobStore) -> list[Finding]:
    """Whether a blob can be written, listed, read and deleted."""
    key, data = probe_key(), b"headrace doctor"
    advice = (
        "Check the permissions on the directory, or the bucket's policy (docs/configuration.md)."
    )
    began = time.time()
    try:
        await blobs.put(key, data)
        listed = await blobs.list("jobs")
        same = await blobs.get(key) == data
        await blobs.delete(key)
    except BlobMissing:
        same, listed = False, {}
    except BlobStoreUnavailable as error:
        return [fail("blobs", str(error), advice)]
    took_s = time.time() - began
    if not same or key not in listed:
        return [fail("blobs", "what was written could not be found again", advice)]
    text = f"written, listed, read and deleted within {took_s * 1000:.0f} ms"
    clock = clock_finding("clock", began - listed[key], "the blob store's", exact_to_s=took_s + 1)
    return [ok("blobs", text), clock]
