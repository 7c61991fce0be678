"""What a step's optimizer steps are made of when its episodes are cut into minibatches."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from backend.jobs.job_control import JobControl
from backend.learner.learner import Learner
from tinkergym.algorithms import GRPO
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.events import JobState
from tinkergym.schema.parsing import parse_spec


@pytest.fixture
def calls(monkeypatch):
    """What the learner is asked, in order: the sequences of an update, and None for an optimizer step."""
    seen: list = []
    forward_backward, optim_step = Learner.forward_backward, Learner.optim_step

    def update(self, policy_id, sequences, *arguments, **settings):
        seen.append(list(sequences))
        return forward_backward(self, policy_id, sequences, *arguments, **settings)

    def step(self, *arguments, **settings):
        seen.append(None)
        return optim_step(self, *arguments, **settings)

    monkeypatch.setattr(Learner, "forward_backward", update)
    monkeypatch.setattr(Learner, "optim_step", step)
    return seen


def trained(lab, **settings):
    algorithm = GRPO(group_size=2, groups_per_step=4, learning_rate=3e-2, **settings)
    job_id = lab.start(steps=1, deterministic=True, algorithm=algorithm)
    lab.play_on(job_id)
    assert lab.state(job_id) is JobState.COMPLETED
    return lab.events(job_id, "step")[-1].metrics


def told(sequences):
    return [(tuple(s.token_ids), tuple(s.sampling_logprobs), float(np.sum(s.advantage))) for s in sequences]


def test_learns_once_from_every_episode_per_pass_in_parts(lab, calls):
    trained(lab, minibatches=3, updates_per_step=2)
    parts, steps = calls[::2], calls[1::2]
    assert steps == [None] * 6
    # Four groups of two: siblings are never learned from by different policies.
    assert sorted(len(part) for part in parts[:3]) == [2, 2, 4]
    assert [told(part) for part in parts[:3]] == [told(part) for part in parts[3:]]
    together = [sequence for part in parts[:3] for sequence in part]
    calls.clear()
    trained(lab)
    assert told(together) == told(calls[0])


def test_compares_first_part_with_its_sampler_after_which_others_move(lab, calls):
    metrics = trained(lab, minibatches=4)
    assert metrics["parity_max"] <= 1e-5
    assert metrics["logprob_gap_max"] > 1e-3


def test_begins_corrected_ratio_at_the_steps_first_policy_in_parts(lab, calls):
    trained(lab, minibatches=2, importance_correction="truncated")
    for part in calls[::2]:
        for sequence in part:
            sampled = [p for p in sequence.sampling_logprobs if p is not None]
            np.testing.assert_allclose(sequence.proximal_logprobs, sampled, atol=1e-5)


@pytest.mark.parametrize("correction", ["truncated", "masked"])
def test_begins_corrected_ratio_at_first_policy_in_later_passes(lab, calls, correction):
    metrics = trained(lab, updates_per_step=3, importance_correction=correction)
    for part in calls[2::2]:
        for sequence in part:
            assert sequence.proximal_logprobs is not None
            sampled = [p for p in sequence.sampling_logprobs if p is not None]
            np.testing.assert_allclose(sequence.proximal_logprobs, sampled, atol=1e-5)
    assert metrics["ratio_mean"] != pytest.approx(1.0, abs=1e-5)


def test_hears_cancellation_between_the_updates_of_a_step(lab, monkeypatch):
    optim_step, cancel, heard, steps = Learner.optim_step, JobControl.cancel, threading.Event(), []

    def step_and_cancel(self, *arguments, **settings):
        steps.append(optim_step(self, *arguments, **settings))
        if len(steps) == 2:
            lab.tenant.request_cancel(job_id)
            assert heard.wait(120)
        return steps[-1]

    monkeypatch.setattr(Learner, "optim_step", step_and_cancel)
    monkeypatch.setattr(JobControl, "cancel", lambda self: (cancel(self), heard.set()))
    job_id = lab.start(steps=1, algorithm=GRPO(group_size=2, groups_per_step=4, updates_per_step=50))
    lab.play_step(job_id)
    lab.until_state(job_id, JobState.CANCELLED)
    assert len(steps) == 2


def test_rejects_more_minibatches_than_groups():
    spec = {"environment": {"id": "bandit/Bandit-v0"}, "steps": 1}
    with pytest.raises(InvalidRequestError) as caught:
        parse_spec({**spec, "algorithm": {"group_size": 2, "groups_per_step": 4, "minibatches": 5}})
    assert caught.value.field == "algorithm.minibatches"
