"""The first tables: studies and their leases, trials, starts, measurements, confirmations, events."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ID = sa.String(64)
_WORD = sa.String(32)
_TIME = sa.DateTime(timezone=True)
_SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _study_key() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["study_id"], ["studies.id"])


def upgrade() -> None:
    op.create_table(
        "studies",
        sa.Column("id", _ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("file", sa.JSON(), nullable=False),
        sa.Column("file_key", _ID, nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("state", _WORD, nullable=False),
        sa.Column("group", _ID, nullable=True),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(None, "studies", ["created_at", "id"])
    op.create_index(None, "studies", ["state", "created_at"])
    op.create_index(None, "studies", ["file_key", "created_at"])
    op.create_index(None, "studies", ["group"])

    op.create_table(
        "leases",
        sa.Column("study_id", _ID, nullable=False),
        sa.Column("token", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("expires_at", _TIME, nullable=True),
        _study_key(),
        sa.PrimaryKeyConstraint("study_id"),
    )

    op.create_table(
        "trials",
        sa.Column("study_id", _ID, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("key", _ID, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("values", sa.JSON(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("baseline", sa.Boolean(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("chosen_by", sa.Text(), nullable=False),
        sa.Column("outcome_kind", _WORD, nullable=True),
        sa.Column("outcome", sa.JSON(), nullable=True),
        _study_key(),
        sa.PrimaryKeyConstraint("study_id", "number"),
        sa.UniqueConstraint("study_id", "key"),
    )

    op.create_table(
        "starts",
        sa.Column("sequence", _SEQUENCE, nullable=False),
        sa.Column("id", _ID, nullable=False),
        sa.Column("study_id", _ID, nullable=False),
        sa.Column("trial", sa.Integer(), nullable=True),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("candidate_key", _ID, nullable=False),
        sa.Column("purpose", _WORD, nullable=False),
        sa.Column("fingerprint", sa.JSON(), nullable=False),
        sa.Column("opened_at", _TIME, nullable=False),
        sa.Column("process", sa.JSON(), nullable=True),
        sa.Column("ready_s", sa.Double(), nullable=True),
        sa.Column("held_s", sa.Double(), nullable=True),
        sa.Column("ended", _WORD, nullable=True),
        sa.Column("command", sa.JSON(), nullable=False),
        sa.Column("log_path", sa.Text(), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=True),
        sa.Column("excluded", sa.Text(), nullable=False),
        _study_key(),
        sa.ForeignKeyConstraint(["study_id", "trial"], ["trials.study_id", "trials.number"]),
        sa.PrimaryKeyConstraint("sequence"),
        sa.UniqueConstraint("id"),
    )
    op.create_index(None, "starts", ["study_id", "trial"])

    op.create_table(
        "measurements",
        sa.Column("sequence", _SEQUENCE, nullable=False),
        sa.Column("study_id", _ID, nullable=False),
        sa.Column("start_id", _ID, nullable=False),
        sa.Column("workload_key", sa.Text(), nullable=False),
        sa.Column("purpose", _WORD, nullable=False),
        sa.Column("repeat", sa.Integer(), nullable=False),
        sa.Column("origin", _WORD, nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("missing", sa.JSON(), nullable=False),
        sa.Column("samples", sa.JSON(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        _study_key(),
        sa.ForeignKeyConstraint(["start_id"], ["starts.id"]),
        sa.PrimaryKeyConstraint("sequence"),
        sa.UniqueConstraint("start_id", "workload_key", "purpose", "repeat"),
    )
    op.create_index(None, "measurements", ["study_id", "purpose", "sequence"])

    op.create_table(
        "confirmations",
        sa.Column("study_id", _ID, nullable=False),
        sa.Column("gpus", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        _study_key(),
        sa.PrimaryKeyConstraint("study_id", "gpus"),
    )

    op.create_table(
        "events",
        sa.Column("id", _SEQUENCE, nullable=False),
        sa.Column("study_id", _ID, nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        _study_key(),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index(None, "events", ["study_id", "id"])


def downgrade() -> None:
    for name in ("events", "confirmations", "measurements", "starts", "trials", "leases", "studies"):
        op.drop_table(name)
