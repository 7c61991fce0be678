"""The checkpoints of the policies that jobs train."""

from __future__ import annotations

from sqlalchemy import Connection, select

from backend.store.tables import checkpoints, job_policies
from tinkergym.schema.events import CheckpointView

NO_AGENT = ""
"""Stands for the agent in a job that trains a single policy, which is not named after a seat."""


def checkpoint_views(connection: Connection, job_id: str, agent: str = NO_AGENT) -> list[CheckpointView]:
    """Read the checkpoints of the policy that a job trains, oldest first."""
    rows = connection.execute(
        select(checkpoints.c.view)
        .join(job_policies, job_policies.c.policy_id == checkpoints.c.policy_id)
        .where(job_policies.c.job_id == job_id, job_policies.c.agent == agent)
        .order_by(checkpoints.c.step)
    )
    return [CheckpointView.model_validate_json(view) for (view,) in rows]
