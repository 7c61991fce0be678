from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest

from backend.config import PACKAGED_MODELS
from backend.garbage import spare_the_collector
from backend.learner.learner import Learner
from backend.learner.sequences import TrainSequence
from backend.training.teacher import Teacher

SEQUENCE = TrainSequence(
    token_ids=[65, 66, 67], loss_mask=[False, True, True], sampling_logprobs=[None, -1.0, -1.0]
)


class Pool:
    """What a teacher asks of a job's context; it opens models and does not hold them."""

    def __init__(self):
        self.opened = []

    def open_model(self, model):
        learner = Learner(PACKAGED_MODELS[model], cpu_threads=2)
        self.opened += [weakref.ref(learner), weakref.ref(learner._base.model)]
        return learner


@pytest.fixture
def pool():
    """A pool that has started: from then on nothing is collected unless somebody asks."""
    spare_the_collector()
    gc.disable()
    yield Pool()
    gc.enable()
    gc.unfreeze()


def test_a_closed_teachers_model_is_gone(pool):
    spec = SimpleNamespace(teacher="nano", model="another")
    teacher = Teacher.of(pool, spec)
    assert len(teacher.logprobs([SEQUENCE])[0]) == 2
    assert all(opened() for opened in pool.opened)
    teacher.close()
    assert [opened() for opened in pool.opened] == [None, None]
    teacher.close()


def test_a_shared_learner_loses_only_the_teachers_policy():
    dropped = []
    learner = SimpleNamespace(drop=dropped.append)
    for policy_id in ("job-1-teacher", None):
        Teacher(learner, policy_id, shared=True).close()
    assert dropped == ["job-1-teacher"]
