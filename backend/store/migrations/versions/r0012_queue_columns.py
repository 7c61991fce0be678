"""Columns for the queue; events are counted by job only, as several writers at a time need it."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Change the tables of revision 0011, which only SQLite ever had."""
    op.add_column("jobs", sa.Column("model", sa.String, nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("other_models", sa.Text, nullable=False, server_default="[]"))
    connection = op.get_bind()
    write = sa.text("UPDATE jobs SET model = :model, other_models = :others WHERE number = :number")
    specs = connection.execute(
        sa.text(
            "SELECT number, json_extract(spec, '$.model') AS model, json_extract(spec, '$.agents') AS agents "
            "FROM jobs"
        )
    ).all()
    for row in specs:
        seats = json.loads(row.agents) if row.agents else {}
        named = {seat.get("model") for seat in seats.values() if seat.get("kind") == "train"}
        others = json.dumps(sorted(named - {None, row.model}))
        connection.execute(write, {"model": row.model, "others": others, "number": row.number})
    op.drop_index("jobs_by_state")
    op.create_index(
        "jobs_queued",
        "jobs",
        ["model", "tenant_id", "reason", "number", "state"],
        sqlite_where=sa.text("state = 'queued'"),
    )
    op.create_index("jobs_held", "jobs", ["worker_id"], sqlite_where=sa.text("worker_id IS NOT NULL"))
    op.rename_table("events", "events_by_position")
    op.create_table(
        "events",
        sa.Column("job_id", sa.String, sa.ForeignKey("jobs.job_id"), primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.execute(
        "INSERT INTO events SELECT job_id, seq, time, body FROM events_by_position ORDER BY job_id, seq"
    )
    op.drop_table("events_by_position")
    # Refuses versions of tinkergym that know no revisions.
    op.execute("UPDATE schema_version SET version = 12")
