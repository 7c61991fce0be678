"""The loop that carries out the calls of a policy's owner; journeys through a whole service are elsewhere."""

from __future__ import annotations

import pytest

from tests.backend.jobs.policy_owner import BATCH, SEQUENCE, STEP, Owner
from tinkergym.schema.certificate import AgreementFacts
from tinkergym.schema.events import JobState
from tinkergym.schema.policy_calls import ForwardBackward, Load, Logprobs, Publish, Save


@pytest.fixture
def owner(lab):
    return Owner(lab)


def damage(lab, job_id):
    for view in lab.service.checkpoints(job_id)[-1:]:
        for weights in lab.folder(view).glob("*.safetensors"):
            weights.write_bytes(b"rust")


def test_releases_the_other_policys_version_after_a_load(lab, owner):
    other = Owner(lab)
    saved = other.call(BATCH, STEP, Save()).policy
    owner.call(Load(policy=saved))
    known = owner.call(Logprobs(sequences=[SEQUENCE])).logprobs
    # With keep_checkpoints=1 this one takes its place.
    other.call(BATCH, STEP, Save())
    owner.moved()
    assert owner.call(Logprobs(sequences=[SEQUENCE])).logprobs == known


def test_rejects_damaged_version_and_goes_on_with_the_policy(lab, owner):
    other = Owner(lab)
    saved = other.call(BATCH, STEP, Save()).policy
    damage(lab, other.job_id)
    known = owner.call(BATCH, STEP, Logprobs(sequences=[SEQUENCE])).logprobs
    assert owner.call(Load(policy=saved)).error.type == "CheckpointCorruptError"
    assert owner.call(Logprobs(sequences=[SEQUENCE])).logprobs == known


def test_keeps_gradient_of_earlier_calls_when_one_is_rejected(lab, owner):
    sequence = {**SEQUENCE, "sampling_logprobs": [-1.0] * 4}
    without_reference = ForwardBackward(sequences=[sequence], loss="ppo", kl_coefficient=0.1)
    assert owner.call(BATCH, without_reference).error.field == "sequences.reference_logprobs"
    assert owner.call(STEP).error is None


def test_ends_policy_with_a_call_that_cannot_be_repeated_exactly(lab):
    owner, other = Owner(lab, keep_checkpoints=2), Owner(lab)
    owner.call(BATCH, STEP, Save())
    owner.call(Load(policy=other.call(BATCH, STEP, Save()).policy))
    other.call(BATCH, STEP, Save())  # takes the place of the one that was loaded
    damage(lab, owner.job_id)  # so that the load is repeated from the checkpoint before it
    owner.moved()
    lab.until(owner.job_id, lambda: lab.state(owner.job_id).final)
    end = lab.events(owner.job_id, "state")[-1]
    assert (end.state, end.error.type) == (JobState.FAILED, "CheckpointCorruptError")


def test_rejects_rejected_call_again_and_repeats_the_others(lab, owner):
    refused = owner.call(Load(policy=f"{owner.job_id}@7"))
    assert refused.error.type == "NotFoundError"
    known = owner.call(BATCH, STEP, Logprobs(sequences=[SEQUENCE])).logprobs
    owner.moved()
    assert owner.call(Logprobs(sequences=[SEQUENCE])).logprobs == known


def compared(lab, owner):
    bodies = lab.tenant.facts(owner.job_id, "agreement")
    found = [AgreementFacts.model_validate_json(body) for body in bodies]
    assert all(one.mean <= one.allowed for one in found)
    return {one.version: one.by for one in found}


def test_compares_each_publish_by_own_completions_or_a_probe(lab, owner):
    prompt = [65, 66]
    first = owner.call(Publish()).version
    own = owner.sampled(prompt, version=first, max_tokens=6)
    sequence = {
        "token_ids": [*prompt, *own.token_ids],
        "loss_mask": [False, False, *[True] * len(own.token_ids)],
        "sampling_logprobs": [None, None, *own.sampling_logprobs],
        "advantage": 1.0,
    }
    batch = ForwardBackward(sequences=[sequence], loss="ppo")
    owner.call(batch, STEP)
    second = owner.call(Publish()).version
    owner.call(batch, STEP)  # completions of the version before say nothing of this one
    third = owner.call(Publish()).version
    owner.call(BATCH, STEP)
    by = compared(lab, owner)
    assert [by[version] for version in (first, second, third)] == ["episodes", "probe", "probe"]


def test_ends_policy_before_it_changes_when_engine_holds_other_weights(lab, owner, publishes_wrongly):
    owner.call(BATCH, STEP)
    publishes_wrongly()
    owner.call(Publish(), BATCH)
    owner.calls.add(owner.job_id, owner.seq + 1, STEP)
    lab.pool.routes.wait_for_call(owner.job_id, owner.seq + 1, 0.0)
    lab.until(owner.job_id, lambda: lab.state(owner.job_id).final)
    end = lab.events(owner.job_id, "state")[-1]
    assert (end.state, end.error.type) == (JobState.FAILED, "ParityError")


def greedy(owner, version):
    completion = owner.sampled([65, 66], version=version, max_tokens=6)
    assert completion.policy_version == version
    return completion.token_ids, completion.sampling_logprobs


def test_samples_last_published_version_after_kill_whatever_was_trained_since(lab, owner):
    first = owner.call(BATCH, STEP, Publish()).version
    known = greedy(owner, first)
    owner.call(BATCH, STEP, Save())
    owner.moved()
    owner.call(Logprobs(sequences=[SEQUENCE]))
    assert greedy(owner, first) == known


def test_keeps_version_of_published_weights_that_are_saved_later(lab, owner):
    owner.call(BATCH, STEP)
    version = owner.call(Publish()).version
    known = greedy(owner, version)
    saved = owner.call(Logprobs(sequences=[SEQUENCE]), Save())
    assert saved.policy == f"{owner.job_id}@{version}"
    owner.moved()
    owner.call(Logprobs(sequences=[SEQUENCE]))
    assert greedy(owner, version) == known


def test_records_a_publish_with_its_hash(lab, owner):
    version = owner.call(BATCH, STEP, Publish()).version
    assert lab.service.version_sha256(owner.job_id, version)
    assert lab.service.job(owner.job_id).policy_version == version
