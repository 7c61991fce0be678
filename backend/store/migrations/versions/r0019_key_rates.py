"""Limits of keys in requests and tokens per minute, and how much of them is left."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Add the columns."""
    op.add_column("api_keys", sa.Column("requests_per_minute", sa.BigInteger))
    op.add_column("api_keys", sa.Column("tokens_per_minute", sa.BigInteger))
    op.add_column("api_keys", sa.Column("requests_left", sa.Float))
    op.add_column("api_keys", sa.Column("tokens_left", sa.Float))
    op.add_column("api_keys", sa.Column("counted_at", sa.Float))
