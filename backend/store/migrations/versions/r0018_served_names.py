"""Names that tenants promote versions of policies to."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "served_names",
        sa.Column("tenant_id", sa.String, sa.ForeignKey("tenants.tenant_id"), primary_key=True),
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("policy", sa.String, nullable=False),
        sa.Column("canary", sa.String, nullable=False),
        sa.Column("share", sa.Float, nullable=False),
        sa.Column("changed_at", sa.Float, nullable=False),
    )
