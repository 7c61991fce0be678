"""What is left of a job that ends within a step: the version of the step before, if it still is that one."""

from __future__ import annotations

import pytest

from backend.learner.checkpoints import Checkpoint
from backend.learner.learner import Learner
from backend.policies.trained_policy import StepChange
from tests.backend.scripted_policy import ScriptedPolicy
from tinkergym.algorithms import GRPO
from tinkergym.errors import NonFiniteLossError
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import FullParameters, LoRA

ROWS = [{"prompt": f"{a}?", "completion": f"it is {a}"} for a in range(4)]


class Poisoned:
    """Spoils the batches of a learner, or their gradients, from a certain one on."""

    def __init__(self, monkeypatch, *, batch=0, gradient=0):
        self._batch, self._gradient = batch, gradient
        self._forward_backward, self._batches = Learner.forward_backward, 0
        poisoned = self
        monkeypatch.setattr(
            Learner,
            "forward_backward",
            lambda learner, *args, **settings: poisoned(learner, *args, **settings),
        )

    def __call__(self, learner, policy_id, *arguments, **settings):
        self._batches += 1
        if self._batches == self._batch:
            raise NonFiniteLossError("the loss is nan")
        result = self._forward_backward(learner, policy_id, *arguments, **settings)
        if self._batches == self._gradient:
            next(iter(learner.gradient(policy_id).values())).fill_(float("nan"))
        return result


def ended(lab, job_id, error_type):
    lab.until(job_id, lambda: lab.state(job_id).final)
    end = lab.events(job_id, "state")[-1]
    assert (end.state, end.error.type) == (JobState.FAILED, error_type), end


def kept(lab, job_id):
    """The steps of the job's checkpoints; the weights in each are those of its version."""
    views = lab.service.checkpoints(job_id)
    for view in views:
        manifest = Checkpoint.open(lab.folder(view)).manifest
        assert (manifest.step, manifest.weights_sha256) == (view.step, lab.weights(job_id, view.step))
        assert manifest.optimizer_steps == view.step
    return [view.step for view in views]


@pytest.mark.parametrize(
    ("where", "adapter"),
    [
        ("batch", LoRA(rank=4)),
        ("gradient", FullParameters()),
        pytest.param("gradient", LoRA(rank=4), marks=pytest.mark.full("as all parameters")),
    ],
)
def test_costs_only_their_step_by_numbers_that_are_not_finite(lab, monkeypatch, adapter, where):
    Poisoned(monkeypatch, **{where: 3})
    job_id = lab.start(steps=5, adapter=adapter)
    lab.play_on(job_id)
    ended(lab, job_id, "NonFiniteLossError")
    assert kept(lab, job_id) == [2]


class PoisonedPolicy(ScriptedPolicy):
    """Its optimizer refuses the gradient of one step."""

    refused = 3

    def optim_step(self, **settings):
        if self.calls.count("batch") == self.refused:
            with self._change.applying():
                raise NonFiniteLossError("the gradient is nan")
        return super().optim_step(**settings)


def stored(jobs, job_id):
    """The steps of the job's checkpoints; the weights in each are those of its version."""
    views = jobs.service.checkpoints(job_id)
    assert [view.sha256 for view in views] == [jobs.weights(job_id, view.step) for view in views]
    return [view.step for view in views]


def test_costs_only_a_step_when_playing_ahead_too(jobs):
    jobs.policy_class = PoisonedPolicy
    job_id = jobs.start(steps=5, max_staleness=1)
    jobs.play_on(job_id)
    ended(jobs, job_id, "NonFiniteLossError")
    assert stored(jobs, job_id) == [2]


def test_costs_only_its_step_by_drift(lab):
    job_id = lab.start(steps=5)
    lab.play_step(job_id)
    lab.play_step(job_id)
    lab.submit(job_id, [drifted(result) for result in lab.play(lab.lease(job_id))])
    ended(lab, job_id, "ParityError")
    assert kept(lab, job_id) == [2]


def test_costs_only_its_step_when_cancelled_before_first_update(jobs):
    class Cancelled(ScriptedPolicy):
        def logprobs(self, sequences):
            if jobs.service.job(job_id).step == 1:
                jobs.tenant.request_cancel(job_id)
                jobs.worker.beat()
            return super().logprobs(sequences)

    jobs.policy_class = Cancelled
    # With it the learner is asked for logprobs before the first of the step's updates.
    algorithm = GRPO(group_size=2, groups_per_step=2, minibatches=2, importance_correction="truncated")
    job_id = jobs.start_later(steps=5, algorithm=algorithm)
    jobs.start_job(job_id)
    jobs.play_on(job_id)
    assert jobs.state(job_id) is JobState.CANCELLED
    assert stored(jobs, job_id) == [1]


def test_drops_policy_that_a_step_has_changed_in_part(jobs):
    class Later(PoisonedPolicy):
        refused = 4

    jobs.policy_class = Later
    job_id = jobs.start(steps=5, algorithm=GRPO(group_size=2, groups_per_step=2, updates_per_step=2))
    jobs.play_on(job_id)
    ended(jobs, job_id, "NonFiniteLossError")
    assert jobs.service.job(job_id).step == 1
    assert stored(jobs, job_id) == []


def test_keeps_last_good_version_of_job_on_written_data(jobs, written_jobs):
    jobs.policy_class = PoisonedPolicy
    job_id = written_jobs.start("sft", ROWS, steps=5)
    ended(jobs, job_id, "NonFiniteLossError")
    (view,) = jobs.service.checkpoints(job_id)
    # Its optimizer refused the third step, so the policy is still that of the second.
    assert (view.step, view.sha256) == (2, jobs.worker.policies[job_id][""].weights)


def test_knows_only_of_refused_gradients_that_nothing_changed():
    change = StepChange()
    with pytest.raises(NonFiniteLossError), change.applying():
        raise NonFiniteLossError("nan")
    assert not change.begun
    with pytest.raises(RuntimeError), change.applying():
        raise RuntimeError("out of memory")
    assert change.begun
    with pytest.raises(NonFiniteLossError), change.applying():
        raise NonFiniteLossError("nan")
    assert change.begun
    change.finished()
    assert not change.begun


def drifted(result):
    """The result with logprobs that the learner cannot find."""
    segments = [
        segment.model_copy(
            update={"sampling_logprobs": [None if p is None else p - 1 for p in segment.sampling_logprobs]}
        )
        for segment in result.trajectory.segments
    ]
    return result.model_copy(
        update={"trajectories": [result.trajectory.model_copy(update={"segments": segments})]}
    )
