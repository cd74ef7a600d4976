"""Kernels that were compiled without a GPU: registers, spills and shared memory of each."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "compiled_kernels",
        sa.Column("architecture", sa.String(32), nullable=False),
        sa.Column("kernel_version", sa.String(64), nullable=False),
        sa.Column("compiler", sa.String(64), nullable=False),
        sa.Column("symbol", sa.String(64), nullable=False),
        sa.Column("m", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("values", sa.JSON(), nullable=False),
        sa.Column("compile_s", sa.Double(), nullable=False),
        sa.Column("registers", sa.Integer(), nullable=False),
        sa.Column("local_bytes", sa.Integer(), nullable=False),
        sa.Column("shared_bytes", sa.Integer(), nullable=False),
        sa.Column("code_bytes", sa.Integer(), nullable=False),
        sa.Column("refused", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("architecture", "kernel_version", "compiler", "symbol"),
    )


def downgrade() -> None:
    op.drop_table("compiled_kernels")
