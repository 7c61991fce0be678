"""The loop that carries out the calls of a policy's owner; journeys through a whole service are elsewhere."""

from __future__ import annotations

import pytest

from tinkergym.schema.events import JobState
from tinkergym.schema.policy_calls import ForwardBackward, Load, Logprobs, OptimStep, PolicySpec, Save

SEQUENCE = {"token_ids": [65, 66, 67, 68]}
BATCH, STEP = ForwardBackward(sequences=[SEQUENCE]), OptimStep(learning_rate=1e-2)


class Owner:
    """Sends calls, as the gateway stores them."""

    def __init__(self, lab):
        self.lab, self.seq, self.calls = lab, 0, lab.store.policy_calls()
        self.job_id = lab.tenant.create_job(PolicySpec(keep_checkpoints=1), {}).job_id
        lab.pool.start_job(self.job_id)

    def call(self, *calls):
        """Send calls, and return the result of the last one."""
        for call in calls:
            self.seq += 1
            self.calls.add(self.job_id, self.seq, call)
        self.lab.pool.wait_for_call(self.job_id, self.seq, 30.0)
        result = self.calls.result(self.job_id, self.seq)
        assert result is not None
        return result

    def moved(self):
        """Have another worker take the policy up, after a kill."""
        self.lab.replace_pool()
        self.lab.pool.start_job(self.job_id)


@pytest.fixture
def owner(lab):
    return Owner(lab)


def test_a_load_is_repeated_after_a_kill(lab, owner):
    saved = owner.call(BATCH, STEP, Save()).policy
    known = owner.call(BATCH, STEP, Load(policy=saved), Logprobs(sequences=[SEQUENCE])).logprobs
    owner.moved()
    assert owner.call(Logprobs(sequences=[SEQUENCE])).logprobs == known


def test_a_policy_whose_calls_cannot_be_repeated_as_they_were_ends_with_the_call(lab, owner):
    other = Owner(lab)
    saved = other.call(BATCH, STEP, Save()).policy
    owner.call(Load(policy=saved))
    # With keep_checkpoints=1 this one takes its place.
    other.call(BATCH, STEP, Save())
    owner.moved()
    lab.until(owner.job_id, lambda: lab.state(owner.job_id).final)
    end = lab.events(owner.job_id, "state")[-1]
    assert (end.state, end.error.type) == (JobState.FAILED, "CheckpointCorruptError")
    assert "call 1 of" in end.error.message


def test_a_call_that_was_refused_is_refused_again_and_the_others_are_repeated(lab, owner):
    refused = owner.call(Load(policy=f"{owner.job_id}@7"))
    assert refused.error.type == "NotFoundError"
    known = owner.call(BATCH, STEP, Logprobs(sequences=[SEQUENCE])).logprobs
    owner.moved()
    assert owner.call(Logprobs(sequences=[SEQUENCE])).logprobs == known
