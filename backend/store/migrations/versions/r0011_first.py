"""The tables of tinkergym 0.1.0, whose databases have a number instead of a revision."""

revision = "0011"
down_revision = None


def upgrade() -> None:
    """Do nothing: a new database gets its tables from `tables.py`."""
