"""Images, which were files with their last use as their time; each tenant's are read from its files once."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "images",
        sa.Column("tenant_id", sa.String, sa.ForeignKey("tenants.tenant_id"), primary_key=True),
        sa.Column("sha256", sa.String, primary_key=True),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("used_at", sa.Float, nullable=False),
    )
    op.create_index("images_by_sha256", "images", ["sha256"])
