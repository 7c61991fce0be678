"""Recorded actions are read back by step, episode and agent, and go when the job's episodes do."""

from __future__ import annotations

import pytest

from backend.episodes.episode_requests import step_requests
from backend.episodes.recorded_actions import RecordedActions, actions_of, record
from backend.store.local_blobs import LocalBlobs
from tests.backend.seats import result_of
from tinkergym.algorithms import GRPO
from tinkergym.errors import NotFoundError
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import Train
from tinkergym.testing.made_up_episodes import one_turn_episode

SPEC = RLSpec(
    environment=EnvironmentRef(id="board/TicTacToe-v0"),
    agents={"x": Train(), "o": Train()},
    algorithm=GRPO(group_size=2, groups_per_step=1),
    steps=9,
)


def written(folder, steps=3):
    """Record some steps of job-1; return what can be read of all jobs."""
    every = LocalBlobs(folder)
    for step in range(1, steps + 1):
        played = [
            (request, result_of(request, *(one_turn_episode(agent=agent) for agent in "xo")))
            for request in step_requests("job-1", SPEC, step)
        ]
        record(every.below("job-1"), step, played, epoch=1)
    return RecordedActions(every)


def test_finds_action_by_step_episode_and_agent(tmp_path):
    recorded = written(tmp_path)
    assert [recorded.of("job-1", step, 1, "o") for step in (1, 3, 1)] == [["gone"]] * 3
    assert recorded.of("job-1", 1, 99, "o") == []


def test_keeps_actions_for_as_many_steps_as_episodes(tmp_path):
    recorded = written(tmp_path)
    actions_of(LocalBlobs(tmp_path / "job-1")).keep_newest(2)
    assert [recorded.of("job-1", step, 0, "x") for step in (2, 3)] == [["gone"]] * 2
    with pytest.raises(NotFoundError):
        recorded.of("job-1", 1, 0, "x")
