"""Which request made a batch, by idempotency key; and what is asked for often, by index."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

Text = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")

UNFINISHED = sa.text("status IN ('validating', 'in_progress', 'cancelling', 'finalizing')")
PARTIAL_INDEXES = (
    ("batches_unfinished", ["created_at", "batch_id"], UNFINISHED),
    ("batches_unfinished_input", ["input_file_id"], UNFINISHED),
    ("batches_results_blob", ["created_at"], sa.text("results_blob IS NOT NULL")),
)


def upgrade() -> None:
    op.create_table(
        "idempotency",
        sa.Column("account", Text, nullable=False),
        sa.Column("key_digest", sa.LargeBinary, nullable=False),
        sa.Column("request_digest", sa.LargeBinary, nullable=False),
        sa.Column("batch_id", Text, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("account", "key_digest", name="idempotency_pkey"),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.batch_id"], name="idempotency_batch_id_fkey", ondelete="CASCADE"
        ),
    )
    op.create_index("idempotency_batch_id_idx", "idempotency", ["batch_id"])
    for name, columns, where in PARTIAL_INDEXES:
        op.create_index(name, "batches", columns, sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    for name, _, _ in PARTIAL_INDEXES:
        op.drop_index(name, "batches")
    op.drop_table("idempotency")
