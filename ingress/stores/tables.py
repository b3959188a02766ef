"""The tables of the SQL store, and how values become rows and rows values.

Columns are named after the fields of the values. What is text from outside is kept exactly, also
where the database could not: PostgreSQL has no NUL in texts, and neither it nor SQLite has lone
surrogates. Imports no driver.
"""

from __future__ import annotations

import json  # noqa: TID251  # the only encoder that keeps lone surrogates; a column of few bytes
import re
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from schemas.batch import Batch, Counts, LineError, LineResult, StoredFile
from schemas.delta import Usage

_ESCAPED: Final = re.compile("[\\\\\x00\ud800-\udfff]")
_ESCAPE: Final = re.compile(r"\\u([0-9a-f]{4})")


class AnyText(sa.types.TypeDecorator[str]):
    r"""Every Python string, ordered by code point: what no database takes is stored as `\uXXXX`.

    A backslash is escaped too, so that each one in the database begins an escape.
    """

    impl = sa.Text
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        if dialect.name == "postgresql":
            return postgresql.TEXT(collation="C")
        return sa.Text()

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        if value is None:
            return None
        return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", value)

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> str | None:
        if value is None:
            return None
        return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), value)


class Json(sa.types.TypeDecorator[Any]):
    """JSON in ASCII, as text: PostgreSQL's own type has no NUL in strings."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str | None:
        return None if value is None else json.dumps(value, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> Any:
        return None if value is None else json.loads(value)


metadata: Final = sa.MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "ix": "%(table_name)s_%(column_0_name)s_idx",
    }
)

UNFINISHED_SQL: Final = sa.text(
    "status IN ('validating', 'in_progress', 'cancelling', 'finalizing')"
)
"""As SQL, not as parameters: only so do databases see that a partial index serves a query."""

ENDED_SQL: Final = sa.text("status IN ('failed', 'completed', 'expired', 'cancelled')")


def _optional(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=True)


def _needed(name: str, kind: Any, *, key: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, primary_key=key)


def _usage() -> tuple[sa.Column[Any], ...]:
    return tuple(_needed(name, sa.BigInteger) for name in Usage.__struct_fields__)


files: Final = sa.Table(
    "files",
    metadata,
    _needed("file_id", AnyText, key=True),
    _needed("account", AnyText),
    _needed("filename", AnyText),
    _needed("purpose", AnyText),
    _needed("size", sa.BigInteger),
    _needed("created_at", sa.BigInteger),
    _optional("expires_at", sa.BigInteger),
    _needed("blob", AnyText),
    sa.Index("files_listed", "account", "created_at", "file_id"),
    sa.Index("files_expiring", "expires_at"),
)

batches: Final = sa.Table(
    "batches",
    metadata,
    _needed("batch_id", AnyText, key=True),
    _needed("account", AnyText),
    _needed("shape", AnyText),
    _needed("endpoint", AnyText),
    _needed("status", AnyText),
    _optional("input_file_id", AnyText),
    _needed("input_blob", AnyText),
    _optional("model", AnyText),
    _optional("metadata", Json),
    _optional("output_expires_after_s", sa.BigInteger),
    _needed("created_at", sa.Double),
    _needed("expires_at", sa.Double),
    _optional("in_progress_at", sa.Double),
    _optional("finalizing_at", sa.Double),
    _optional("completed_at", sa.Double),
    _optional("failed_at", sa.Double),
    _optional("expired_at", sa.Double),
    _optional("cancelling_at", sa.Double),
    _optional("cancelled_at", sa.Double),
    _optional("archived_at", sa.Double),
    *(_needed(name, sa.Integer) for name in Counts.__struct_fields__),
    *_usage(),
    _needed("errors", Json),
    _optional("output_file_id", AnyText),
    _optional("error_file_id", AnyText),
    _optional("results_blob", AnyText),
    _optional("lease_owner", AnyText),
    _optional("lease_until", sa.Double),
    sa.Index("batches_listed", "account", "shape", "created_at", "batch_id"),
)
"""Besides the fields of `Batch`, who holds it and until when."""

results: Final = sa.Table(
    "results",
    metadata,
    sa.Column(
        "batch_id",
        AnyText,
        sa.ForeignKey("batches.batch_id", ondelete="CASCADE"),
        primary_key=True,
    ),
    _needed("line", sa.Integer, key=True),
    _needed("outcome", AnyText),
    _needed("text", sa.LargeBinary),
    *_usage(),
)

idempotency: Final = sa.Table(
    "idempotency",
    metadata,
    _needed("account", AnyText, key=True),
    _needed("key_digest", sa.LargeBinary, key=True),
    _needed("request_digest", sa.LargeBinary),
    sa.Column(
        "batch_id",
        AnyText,
        sa.ForeignKey("batches.batch_id", ondelete="CASCADE"),
        nullable=False,
        index=True,
    ),
    _needed("created_at", sa.Double),
)
"""A key is kept as its SHA-256: it may be longer than an index takes."""

accounts: Final = sa.Table(
    "accounts",
    metadata,
    _needed("account_id", AnyText, key=True),
    _needed("terms", Json),
    _needed("created_at", sa.Double),
    _optional("deleted_at", sa.Double),
    _needed("revision", sa.BigInteger),
    sa.Index("accounts_revision_idx", "revision", "account_id"),
)
"""`terms` are an `Account`'s fields. One that was deleted leaves its id, which none gets again.
`revision` is that of its last change, here and of keys."""

api_keys: Final = sa.Table(
    "api_keys",
    metadata,
    _needed("key_id", AnyText, key=True),
    sa.Column(
        "account_id",
        AnyText,
        sa.ForeignKey("accounts.account_id", ondelete="CASCADE"),
        nullable=False,
        index=True,
    ),
    _needed("label", AnyText),
    _needed("digest", sa.LargeBinary),
    _needed("created_at", sa.Double),
    _optional("expires_at", sa.Double),
    _optional("revoked_at", sa.Double),
    _needed("revision", sa.BigInteger),
    sa.Index("api_keys_revision_idx", "revision", "key_id"),
    sa.Index("api_keys_digest_idx", "digest", unique=True),
)
"""Of a key itself there is only its digest."""

directory_revision: Final = sa.Table(
    "directory_revision",
    metadata,
    _needed("only", sa.Integer, key=True),
    _needed("revision", sa.BigInteger),
)
"""One row, counted up with every change of accounts and keys: so processes see that there was."""

account_states: Final = sa.Table(
    "account_states",
    metadata,
    _needed("account_id", AnyText, key=True),
    _needed("state", sa.LargeBinary),
)
"""What each account uses now, as one value that is read and written whole."""

usage_records: Final = sa.Table(
    "usage_records",
    metadata,
    _needed("record_id", AnyText, key=True),
    _needed("request_id", AnyText),
    _needed("account", AnyText),
    _needed("key", AnyText),
    _needed("model", AnyText),
    _needed("dialect", AnyText),
    _needed("job_class", AnyText),
    _optional("batch_id", AnyText),
    _needed("stream", sa.Boolean),
    _needed("zdr", sa.Boolean),
    _needed("began_at", sa.Double),
    _needed("status", sa.Integer),
    _needed("outcome", AnyText),
    _optional("code", AnyText),
    _optional("finish_reason", AnyText),
    _optional("ttft_ms", sa.Double),
    _optional("queue_ms", sa.Double),
    _needed("duration_ms", sa.Double),
    *_usage(),
    _needed("microcents", sa.BigInteger),
    _needed("attempts", sa.Integer),
    _optional("worker", AnyText),
    sa.Index("usage_records_account_idx", "account", "began_at", "record_id"),
    sa.Index("usage_records_began_at_idx", "began_at", "record_id"),
)

idempotent_requests: Final = sa.Table(
    "idempotent_requests",
    metadata,
    _needed("account", AnyText, key=True),
    _needed("key_digest", sa.LargeBinary, key=True),
    _needed("request_digest", sa.LargeBinary),
    _needed("owner", AnyText),
    _needed("running", sa.Boolean),
    _needed("kept", sa.Boolean),
    _needed("created_at", sa.Double),
    _needed("expires_at", sa.Double),
    sa.Index("idempotent_requests_expires_at_idx", "expires_at"),
    sa.Index("idempotent_requests_owner_idx", "owner"),
)
"""Inference requests with an idempotency key, as `ingress.idempotency.store` has them: `owner` is
who runs it, and `expires_at` when another may take it for lost, or it is forgotten."""

for _name, _columns, _where in (
    ("batches_unfinished", ("created_at", "batch_id"), UNFINISHED_SQL),
    ("batches_unfinished_input", ("input_file_id",), UNFINISHED_SQL),
    ("batches_results_blob", ("created_at",), sa.text("results_blob IS NOT NULL")),
):
    sa.Index(
        _name,
        *(batches.c[column] for column in _columns),
        sqlite_where=_where,
        postgresql_where=_where,
    )

_GROUPED: Final = ("counts", "usage", "errors")
_PLAIN: Final = tuple(name for name in Batch.__struct_fields__ if name not in _GROUPED)
BATCH_COLUMNS: Final = tuple(
    batches.c[name]
    for name in (*_PLAIN, *Counts.__struct_fields__, *Usage.__struct_fields__, "errors")
)
"""What `batch_of` needs."""


def file_row(file: StoredFile) -> dict[str, Any]:
    return msgspec.structs.asdict(file)


def file_of(row: sa.RowMapping) -> StoredFile:
    return StoredFile(**dict(row))


def batch_row(batch: Batch) -> dict[str, Any]:
    return {
        **{name: getattr(batch, name) for name in _PLAIN},
        **msgspec.structs.asdict(batch.counts),
        **msgspec.structs.asdict(batch.usage),
        "errors": [msgspec.structs.asdict(error) for error in batch.errors],
    }


def batch_of(row: sa.RowMapping) -> Batch:
    return Batch(
        **{name: row[name] for name in _PLAIN},
        counts=Counts(**{name: row[name] for name in Counts.__struct_fields__}),
        usage=Usage(**{name: row[name] for name in Usage.__struct_fields__}),
        errors=tuple(LineError(**error) for error in row["errors"]),
    )


def result_row(batch_id: str, result: LineResult) -> dict[str, Any]:
    return {
        "batch_id": batch_id,
        "line": result.line,
        "outcome": result.outcome,
        "text": result.text,
        **msgspec.structs.asdict(result.usage),
    }
