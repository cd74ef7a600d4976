"""The service: access tokens, submissions by Idempotency-Key, the audit log, and trials counted in an index."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_ID = sa.String(64)
_WORD = sa.String(32)
_TIME = sa.DateTime(timezone=True)
_SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "tokens",
        sa.Column("name", _ID, nullable=False),
        sa.Column("scope", _WORD, nullable=False),
        sa.Column("digest", _ID, nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("name"),
        sa.UniqueConstraint("digest"),
    )
    op.create_table(
        "submissions",
        sa.Column("actor", _ID, nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("body_digest", _ID, nullable=False),
        sa.Column("study_ids", sa.JSON(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("actor", "key"),
    )
    op.create_index(None, "submissions", ["at"])
    op.create_table(
        "audit",
        sa.Column("id", _SEQUENCE, nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("actor", _ID, nullable=False),
        sa.Column("action", _WORD, nullable=False),
        sa.Column("subject", _ID, nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index(None, "trials", ["study_id", "gpus", "outcome_kind"])


def downgrade() -> None:
    op.drop_index("ix_trials_study_id_gpus_outcome_kind", "trials")
    for name in ("audit", "submissions", "tokens"):
        op.drop_table(name)
