from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest

from backend.learner.learner import Learner
from backend.learner.sequences import TrainSequence
from backend.policies.policy_binding import PolicyBinding, PoolParts
from backend.policies.teacher import LoadedPolicy, open_teacher
from backend.processes.children import freeze_startup_objects
from backend.settings.served_models import PACKAGED_MODELS
from backend.store.local_blobs import LocalBlobs
from tinkergym.algorithms import GRPO, PPO
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import FullParameters, LoRA

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
    freeze_startup_objects()
    gc.disable()
    yield Models()
    gc.enable()
    gc.unfreeze()


def test_drops_model_of_a_closed_teacher(models, tmp_path):
    pool = PoolParts(
        store=None, job_files=None, engine=None, directory=None, early=None, open_model=models.open
    )
    lease = SimpleNamespace(spec=SimpleNamespace(model="another"))
    student = PolicyBinding(
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
        LoadedPolicy(learner, policy_id, shared=True).close()
    assert dropped == ["policy-1/teacher"]


SAYS = [{"prompt": "say something", "completion": "hello"}]
IN_LOSS = {"kl_coefficient": 0.1, "kl_in": "loss", "kl_estimator": "k3"}
IN_REWARD = {"kl_coefficient": 0.1, "kl_in": "reward", "kl_estimator": "k1"}
PAIRS = GRPO(group_size=2, groups_per_step=4, learning_rate=1e-2, **IN_LOSS)


@pytest.fixture
def loaded(monkeypatch):
    """The names under which the learner loaded checkpoints, in order."""
    names, load = [], Learner.load

    def noted(self, policy_id, *arguments, **settings):
        names.append(policy_id)
        return load(self, policy_id, *arguments, **settings)

    monkeypatch.setattr(Learner, "load", noted)
    return names


def taught(written, adapter):
    """A policy that is far from the model: nearly everything that it says is unlikely there."""
    rate = 1e-2 if adapter.kind == "lora" else 2e-3
    first = written.run("sft", SAYS, steps=4, batch_size=1, learning_rate=rate, adapter=adapter)
    return f"{first}@4"


def kls(lab, job_id):
    return [step.metrics["kl"] for step in lab.events(job_id, "step")]


def train(lab, **settings):
    job_id = lab.start(**settings)
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED, lab.events(job_id, "state")[-1]
    return job_id


@pytest.mark.parametrize(
    "adapter", [LoRA(rank=4), pytest.param(FullParameters(), marks=pytest.mark.full("three times as long"))]
)
def test_counts_from_the_policy_the_job_began_with(lab, written, loaded, adapter):
    job_id = train(lab, steps=3, initial_policy=taught(written, adapter), adapter=adapter, algorithm=PAIRS)
    first, *later = kls(lab, job_id)
    assert first == 0.0
    assert all(kl > 0 for kl in later)
    # Whole models are not kept beside the one that learns.
    (policy_id,) = lab.service.policies_of(job_id).values()
    assert loaded.count(f"{policy_id}@0") == (1 if adapter.kind == "lora" else 3)
    lab.until(job_id, lambda: lab.pool.own.learner.current().policy_ids == [])  # shortly after the job's end


@pytest.mark.parametrize(
    "algorithm",
    [
        GRPO(group_size=2, groups_per_step=4, learning_rate=1e-2, **IN_REWARD),
        PPO(groups_per_step=8, learning_rate=1e-2, **IN_LOSS),
    ],
    ids=["reward", "ppo"],
)
def test_measures_reward_kl_from_what_the_job_began_with(lab, written, algorithm):
    adapter = LoRA(rank=4)
    first, second = kls(
        lab,
        train(lab, steps=2, initial_policy=taught(written, adapter), adapter=adapter, algorithm=algorithm),
    )
    # The engine that sampled may round otherwise than the learner that is asked.
    assert first == pytest.approx(0.0, abs=1e-5)
    assert abs(second) > 1e-4


@pytest.mark.parametrize(
    "checkpoint_every", [pytest.param(1, marks=pytest.mark.full("keeps it as without checkpoints")), 100]
)
def test_keeps_the_reference_after_restart_though_its_job_is_gone(lab, written, checkpoint_every):
    adapter = LoRA(rank=4)
    begun_with = taught(written, adapter)
    settings = {
        "steps": 3,
        "initial_policy": begun_with,
        "adapter": adapter,
        "algorithm": PAIRS,
        "deterministic": True,
        "checkpoint_every": checkpoint_every,
    }
    smooth = train(lab, **settings)
    broken = lab.start(**settings)
    lab.play_step(broken)
    lab.lease(broken)
    for view in lab.service.checkpoints(begun_with.partition("@")[0]):
        for file in lab.folder(view).iterdir():
            file.unlink()
    lab.replace_pool()
    lab.pool.start_job(broken)
    lab.play_on(broken)
    assert lab.state(broken) is JobState.COMPLETED, lab.events(broken, "state")[-1]
    assert {step.step: step.metrics["kl"] for step in lab.events(broken, "step")} == {
        step.step: step.metrics["kl"] for step in lab.events(smooth, "step")
    }
    assert lab.weights(broken, 3) == lab.weights(smooth, 3)


@pytest.mark.full("trains a job of all parameters; `test_checkpoint_keeping` has the rules")
def test_keeps_what_job_began_with_beside_however_few_checkpoints(lab, written):
    adapter = FullParameters()
    other = written.run("sft", SAYS, steps=1, batch_size=1, adapter=adapter)
    job_id = lab.start(
        steps=3,
        initial_policy=f"{other}@1",
        adapter=adapter,
        algorithm=GRPO(group_size=2, groups_per_step=2, learning_rate=1e-2, **IN_LOSS),
        checkpoint_every=1,
        keep_checkpoints=1,
    )
    for made in (2, 3):  # with the one of the beginning
        lab.play_step(job_id)
        lab.until(
            job_id,
            lambda made=made: len(lab.events(job_id, "checkpoint")) == made or lab.state(job_id).final,
        )
    lab.replace_pool()
    lab.pool.start_job(job_id)
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED, lab.events(job_id, "state")[-1]
    views = lab.service.checkpoints(job_id)
    assert [view.step for view in views] == [0, 3]
    assert all((lab.folder(view) / "manifest.json").is_file() for view in views)
    first, *later = kls(lab, job_id)
    assert first == 0.0
    assert len(later) == 2 and all(kl > 0 for kl in later)
