from __future__ import annotations

import threading

import gymnasium as gym
import pytest

from tinkergym.tasks import JsonlTasks, SequenceTasks, TaskSource
from tinkergym.tasks.pinned import data_sha256


class Env(gym.Env):
    observation_space = action_space = gym.spaces.Text(10)

    def __init__(self, **sources):
        vars(self).update(sources)


def rows(*answers):
    return SequenceTasks([{"answer": answer} for answer in answers])


def test_pins_environment_by_its_tasks_wrapped_or_not(tmp_path):
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"answer": 1}\n')
    env = Env(tasks=JsonlTasks(file))
    first = data_sha256(env, seconds=60.0)
    assert first == JsonlTasks(file).fingerprint
    assert data_sha256(gym.wrappers.TimeLimit(env, 3), seconds=60.0) == first
    file.write_text('{"answer": 2}\n')
    assert data_sha256(Env(tasks=JsonlTasks(file)), seconds=60.0) != first


def test_pins_several_sources_together():
    one, other = rows(1), rows(2)
    both = data_sha256(Env(train=one, test=other), seconds=60.0)
    assert both == data_sha256(Env(test=one, train=other), seconds=60.0)
    assert both not in {one.fingerprint, other.fingerprint, "", None}


def test_has_no_hash_for_environment_without_data():
    assert data_sha256(Env(), seconds=60.0) is None


class Slow(TaskSource):
    name = "slow"

    def __init__(self, ended: threading.Event) -> None:
        self.ended = ended

    @property
    def fingerprint(self) -> str:
        self.ended.wait(60)
        raise OSError("the disk is gone")

    def __len__(self) -> int:
        return 1

    def read(self, index):
        return {}


@pytest.mark.parametrize("ends", [True, False])
def test_leaves_hash_empty_of_data_not_hashable_in_time(ends):
    ended = threading.Event()
    if ends:
        ended.set()
    assert data_sha256(Env(tasks=Slow(ended)), seconds=60.0 if ends else 0.01) == ""
    ended.set()
