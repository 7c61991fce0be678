"""Secrets of jobs, which were files; the service reads the folder once, at its next start."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "secrets",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("sha256", sa.String, nullable=False, unique=True),
        sa.Column("value", sa.Text, nullable=False),
        sa.Column("stored_at", sa.Float, nullable=False),
    )
