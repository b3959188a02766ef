"""Files, batches, and the results of lines."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# By code point, in whatever language the database sorts.
Text = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "files",
        sa.Column("file_id", Text, nullable=False),
        sa.Column("account", Text, nullable=False),
        sa.Column("filename", Text, nullable=False),
        sa.Column("purpose", Text, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=True),
        sa.Column("blob", Text, nullable=False),
        sa.PrimaryKeyConstraint("file_id", name="files_pkey"),
    )
    op.create_index("files_listed", "files", ["account", "created_at", "file_id"])
    op.create_index("files_expiring", "files", ["expires_at"])
    op.create_table(
        "batches",
        sa.Column("batch_id", Text, nullable=False),
        sa.Column("account", Text, nullable=False),
        sa.Column("shape", Text, nullable=False),
        sa.Column("endpoint", Text, nullable=False),
        sa.Column("status", Text, nullable=False),
        sa.Column("input_file_id", Text, nullable=True),
        sa.Column("input_blob", Text, nullable=False),
        sa.Column("model", Text, nullable=True),
        sa.Column("metadata", sa.Text, nullable=True),
        sa.Column("output_expires_after_s", sa.BigInteger, nullable=True),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("in_progress_at", sa.Double, nullable=True),
        sa.Column("finalizing_at", sa.Double, nullable=True),
        sa.Column("completed_at", sa.Double, nullable=True),
        sa.Column("failed_at", sa.Double, nullable=True),
        sa.Column("expired_at", sa.Double, nullable=True),
        sa.Column("cancelling_at", sa.Double, nullable=True),
        sa.Column("cancelled_at", sa.Double, nullable=True),
        sa.Column("archived_at", sa.Double, nullable=True),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("succeeded", sa.Integer, nullable=False),
        sa.Column("errored", sa.Integer, nullable=False),
        sa.Column("cancelled", sa.Integer, nullable=False),
        sa.Column("expired", sa.Integer, nullable=False),
        *_usage(),
        sa.Column("errors", sa.Text, nullable=False),
        sa.Column("output_file_id", Text, nullable=True),
        sa.Column("error_file_id", Text, nullable=True),
        sa.Column("results_blob", Text, nullable=True),
        sa.Column("lease_owner", Text, nullable=True),
        sa.Column("lease_until", sa.Double, nullable=True),
        sa.PrimaryKeyConstraint("batch_id", name="batches_pkey"),
    )
    op.create_index("batches_listed", "batches", ["account", "shape", "created_at", "batch_id"])
    op.create_table(
        "results",
        sa.Column("batch_id", Text, nullable=False),
        sa.Column("line", sa.Integer, nullable=False),
        sa.Column("outcome", Text, nullable=False),
        sa.Column("text", sa.LargeBinary, nullable=False),
        *_usage(),
        sa.PrimaryKeyConstraint("batch_id", "line", name="results_pkey"),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.batch_id"], name="results_batch_id_fkey", ondelete="CASCADE"
        ),
    )


def downgrade() -> None:
    op.drop_table("results")
    op.drop_table("batches")
    op.drop_table("files")


def _usage() -> tuple[sa.Column[int], ...]:
    return (
        sa.Column("input_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger, nullable=False),
    )
