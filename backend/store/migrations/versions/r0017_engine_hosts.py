"""Engine hosts: further engines of pools, on any machine."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "engine_hosts",
        sa.Column("engine_id", sa.String, primary_key=True),
        sa.Column("pool_id", sa.String, nullable=False),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("node", sa.String, nullable=False),
        sa.Column("url", sa.String, nullable=False),
        sa.Column("seen_at", sa.Float, nullable=False),
        sa.Column("memory_bytes", sa.BigInteger, nullable=False, server_default="0"),
    )
