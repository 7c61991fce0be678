from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest

from backend.config import PACKAGED_MODELS
from backend.learner.learner import Learner
from backend.learner.sequences import TrainSequence
from backend.policies.bound import Bound, PoolParts
from backend.policies.frozen_policy import FrozenPolicy
from backend.policies.teacher import open_teacher
from backend.processes.children import spare_the_collector
from backend.store.blobs import LocalBlobs

SEQUENCE = TrainSequence(
    token_ids=[65, 66, 67], loss_mask=[False, True, True], sampling_logprobs=[None, -1.0, -1.0]
)


class Models:
    """Opens models and does not hold them."""

    def __init__(self):
        self.opened = []

    def open(self, model):
        learner = Learner(PACKAGED_MODELS[model], cpu_threads=2)
        self.opened += [weakref.ref(learner), weakref.ref(learner._base.lm.model)]
        return learner


@pytest.fixture
def models():
    """Of a pool that has started: from then on nothing is collected unless somebody asks."""
    spare_the_collector()
    gc.disable()
    yield Models()
    gc.enable()
    gc.unfreeze()


def test_drops_model_of_a_closed_teacher(models, tmp_path):
    pool = PoolParts(
        store=None, job_files=None, engine=None, directory=None, early=None, open_model=models.open
    )
    lease = SimpleNamespace(spec=SimpleNamespace(model="another"))
    student = Bound(
        policy_id="policy-1", agent="", lease=lease, files=LocalBlobs(tmp_path), learner=None, pool=pool
    )
    teacher = open_teacher(student, "nano")
    assert len(teacher.logprobs([SEQUENCE])[0]) == 2
    assert all(opened() for opened in models.opened)
    teacher.close()
    assert [opened() for opened in models.opened] == [None, None]
    teacher.close()


def test_drops_only_the_teachers_policy_from_shared_learner():
    dropped = []
    learner = SimpleNamespace(drop=dropped.append)
    for policy_id in ("policy-1/teacher", None):
        FrozenPolicy(learner, policy_id, shared=True).close()
    assert dropped == ["policy-1/teacher"]
