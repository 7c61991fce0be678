"""Browsers that are logged in, and names and tags of jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Add the table and the column."""
    op.create_table(
        "sessions",
        sa.Column("sha256", sa.String, primary_key=True),
        sa.Column("key_id", sa.String, sa.ForeignKey("api_keys.key_id"), nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
    )
    op.add_column("jobs", sa.Column("labels", sa.Text, nullable=False, server_default="{}"))
