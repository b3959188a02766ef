"""Accounts and their keys, what they use now, records of usage, and idempotent requests."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

Text = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def _needed(name: str, kind: object) -> sa.Column[object]:
    return sa.Column(name, kind, nullable=False)  # type: ignore[arg-type]


def _optional(name: str, kind: object) -> sa.Column[object]:
    return sa.Column(name, kind, nullable=True)  # type: ignore[arg-type]


def upgrade() -> None:
    op.create_table(
        "accounts",
        _needed("account_id", Text),
        _needed("terms", sa.Text),
        _needed("created_at", sa.Double),
        _optional("deleted_at", sa.Double),
        _needed("revision", sa.BigInteger),
        sa.PrimaryKeyConstraint("account_id", name="accounts_pkey"),
    )
    op.create_index("accounts_revision_idx", "accounts", ["revision", "account_id"])
    op.create_table(
        "api_keys",
        _needed("key_id", Text),
        _needed("account_id", Text),
        _needed("label", Text),
        _needed("digest", sa.LargeBinary),
        _needed("created_at", sa.Double),
        _optional("expires_at", sa.Double),
        _optional("revoked_at", sa.Double),
        _needed("revision", sa.BigInteger),
        sa.PrimaryKeyConstraint("key_id", name="api_keys_pkey"),
        sa.ForeignKeyConstraint(
            ["account_id"],
            ["accounts.account_id"],
            name="api_keys_account_id_fkey",
            ondelete="CASCADE",
        ),
    )
    op.create_index("api_keys_revision_idx", "api_keys", ["revision", "key_id"])
    op.create_index("api_keys_account_id_idx", "api_keys", ["account_id"])
    op.create_index("api_keys_digest_idx", "api_keys", ["digest"], unique=True)
    op.create_table(
        "directory_revision",
        _needed("only", sa.Integer),
        _needed("revision", sa.BigInteger),
        sa.PrimaryKeyConstraint("only", name="directory_revision_pkey"),
    )
    op.create_table(
        "account_states",
        _needed("account_id", Text),
        _needed("state", sa.LargeBinary),
        sa.PrimaryKeyConstraint("account_id", name="account_states_pkey"),
    )
    op.create_table(
        "usage_records",
        _needed("record_id", Text),
        _needed("request_id", Text),
        _needed("account", Text),
        _needed("key", Text),
        _needed("model", Text),
        _needed("dialect", Text),
        _needed("job_class", Text),
        _optional("batch_id", Text),
        _needed("stream", sa.Boolean),
        _needed("zdr", sa.Boolean),
        _needed("began_at", sa.Double),
        _needed("status", sa.Integer),
        _needed("outcome", Text),
        _optional("code", Text),
        _optional("finish_reason", Text),
        _optional("ttft_ms", sa.Double),
        _optional("queue_ms", sa.Double),
        _needed("duration_ms", sa.Double),
        _needed("input_tokens", sa.BigInteger),
        _needed("cached_tokens", sa.BigInteger),
        _needed("output_tokens", sa.BigInteger),
        _needed("reasoning_tokens", sa.BigInteger),
        _needed("microcents", sa.BigInteger),
        _needed("attempts", sa.Integer),
        _optional("worker", Text),
        sa.PrimaryKeyConstraint("record_id", name="usage_records_pkey"),
    )
    op.create_index(
        "usage_records_account_idx", "usage_records", ["account", "began_at", "record_id"]
    )
    op.create_index("usage_records_began_at_idx", "usage_records", ["began_at", "record_id"])
    op.create_table(
        "idempotent_requests",
        _needed("account", Text),
        _needed("key_digest", sa.LargeBinary),
        _needed("request_digest", sa.LargeBinary),
        _needed("owner", Text),
        _needed("running", sa.Boolean),
        _needed("kept", sa.Boolean),
        _needed("created_at", sa.Double),
        _needed("expires_at", sa.Double),
        sa.PrimaryKeyConstraint("account", "key_digest", name="idempotent_requests_pkey"),
    )
    op.create_index("idempotent_requests_expires_at_idx", "idempotent_requests", ["expires_at"])
    op.create_index("idempotent_requests_owner_idx", "idempotent_requests", ["owner"])


def downgrade() -> None:
    for table in (
        "idempotent_requests",
        "usage_records",
        "account_states",
        "directory_revision",
        "api_keys",
        "accounts",
    ):
        op.drop_table(table)
