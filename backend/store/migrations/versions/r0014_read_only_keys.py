"""Keys that sample and read only; those that exist change everything, as before."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Add the column."""
    op.add_column("api_keys", sa.Column("read_only", sa.Boolean, nullable=False, server_default=sa.false()))
