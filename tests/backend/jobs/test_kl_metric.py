"""The KL to the beginning as a metric of jobs without a KL penalty."""

from __future__ import annotations

import pytest

from backend.learner.learner import Learner
from tests.backend.watched_jobs import job_spec
from tinkergym.algorithms import GRPO
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import FullParameters


@pytest.fixture
def asked(monkeypatch):
    """How many sequences the policies other than the job's own were asked about, in order."""
    seen: list = []
    logprobs = Learner.logprobs

    def spy(self, policy_id, sequences, *arguments, **settings):
        if policy_id is None:
            seen.append(len(sequences))
        return logprobs(self, policy_id, sequences, *arguments, **settings)

    monkeypatch.setattr(Learner, "logprobs", spy)
    return seen


def kl_by_step(lab, **settings):
    algorithm = GRPO(group_size=2, groups_per_step=8, learning_rate=3e-2)
    job_id = lab.start(steps=3, algorithm=algorithm, **settings)
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED
    return {event.step: event.metrics.get("kl") for event in lab.events(job_id, "step")}


def test_estimates_kl_on_a_few_sequences_where_it_is_due(lab, asked):
    found = kl_by_step(lab, kl_metric_every=1)
    assert found[1] == pytest.approx(0.0, abs=1e-6)  # the first version is the beginning itself
    assert found[3] > 1e-6
    assert asked[-3:] == [2, 2, 2]


def test_pays_nothing_for_kl_where_it_is_off_or_early(lab, asked):
    assert set(kl_by_step(lab, kl_metric_every=0).values()) == {None}
    assert set(kl_by_step(lab).values()) == {None}  # every tenth step
    # What the certificate asks of the first adapter, once per job.
    assert len(asked) == 2


def test_derives_when_it_is_measured_from_its_cost():
    assert job_spec().kl_measured_every == 10
    assert job_spec(kl_metric_every=3).kl_measured_every == 3
    whole = job_spec(adapter=FullParameters())
    assert whole.kl_measured_every == 10
    assert whole.model_copy(update={"initial_policy": "job-1@4"}).kl_measured_every == 0
    penalty = GRPO(group_size=2, groups_per_step=2, kl_coefficient=0.1)
    assert job_spec(algorithm=penalty).kl_measured_every == 0
    with pytest.raises(ValueError, match="kl_metric_every"):
        job_spec(algorithm=penalty, kl_metric_every=3)
