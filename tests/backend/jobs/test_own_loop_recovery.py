"""A user's own loop after a kill at each of its moments: every acknowledged call took effect once."""

from __future__ import annotations

import math

import pytest

from backend.errors import LeaseLostError
from backend.policies.pool_policy import PoolPolicy
from backend.store.store import ServiceStore
from tests.backend.jobs.policy_owner import BATCH, SEQUENCE, STEP, Owner
from tinkergym.errors import ServiceUnavailableError
from tinkergym.schema.events import JobState
from tinkergym.schema.optimizer import AdamW
from tinkergym.schema.policy_calls import ForwardBackward, Load, Logprobs, Publish, Save
from tinkergym.schema.sampling import SampleRequest

IDLE = ForwardBackward(sequences=[{**SEQUENCE, "advantage": 0.0}])
"""Its gradient is zero, so the step after it is skipped."""


@pytest.fixture
def killed_at(lab, monkeypatch):
    """Kill the worker at its next call of a method, while it carries out the last of some calls."""

    def kill(owner, place, method, *calls):
        reached = []

        def die(*_, **__):
            reached.append(method)
            raise LeaseLostError("as if it had been killed")

        owner.call(*calls[:-1])
        with monkeypatch.context() as patched:
            patched.setattr(place, method, die)
            owner.send(calls[-1])
            lab.until(owner.job_id, lambda: reached)
            lab.close_pool()
        owner.moved(from_a_closed_pool=True)

    return kill


def steps(lab, owner):
    return [view.step for view in lab.service.checkpoints(owner.job_id)]


def damage_newest(lab, owner):
    newest = lab.service.checkpoints(owner.job_id)[-1]
    for weights in lab.folder(newest).glob("*.safetensors"):
        weights.write_bytes(b"rust")


@pytest.mark.parametrize("with_optimizer", [True, False])
def test_repeats_a_load_that_no_checkpoint_covers(lab, killed_at, with_optimizer):
    owner = Owner(lab)
    saved = owner.call(BATCH, STEP, Save()).policy
    known = owner.logprobs()
    owner.call(BATCH, STEP)
    ahead = owner.logprobs()
    killed_at(owner, PoolPolicy, "save", Load(policy=saved, with_optimizer=with_optimizer))
    assert owner.logprobs() == known
    owner.call(BATCH, STEP)
    assert (owner.logprobs() == ahead) == with_optimizer


def test_returns_result_of_a_save_again_that_was_lost(lab, killed_at):
    owner = Owner(lab)
    killed_at(owner, ServiceStore, "finish_call", BATCH, STEP, Save())
    owner.logprobs()
    result = owner.calls.result(owner.job_id, 3)
    assert (result.policy, result.version) == (f"{owner.job_id}@3", 3)
    assert steps(lab, owner) == [3]


@pytest.mark.parametrize("refused", [STEP, Logprobs(sequences=[SEQUENCE])], ids=["optim_step", "logprobs"])
def test_repeats_call_whose_result_the_store_refused(lab, monkeypatch, refused):
    before = [BATCH] if refused is STEP else [BATCH, STEP]
    known = Owner(lab).call(*before, refused)
    owner = Owner(lab)
    owner.call(*before)
    written, refusals = ServiceStore.finish_call, []

    def locked_once(*arguments, **named):
        if not refusals:
            refusals.append(arguments)
            raise ServiceUnavailableError("another process locked the database for 15 s")
        written(*arguments, **named)

    monkeypatch.setattr(ServiceStore, "finish_call", locked_once)
    owner.send(refused)

    def answered():
        if lab.state(owner.job_id) is JobState.QUEUED:
            lab.pool.start_job(owner.job_id)
        return owner.calls.result(owner.job_id, owner.seq)

    lab.until(owner.job_id, answered)
    assert owner.calls.result(owner.job_id, owner.seq) == known


def test_keeps_a_gradient_over_a_checkpoint_that_is_due(lab):
    owner = Owner(lab, checkpoint_every=1)
    known = Owner(lab).call(BATCH, BATCH, STEP).metrics["grad_norm"]
    owner.call(BATCH, BATCH)
    owner.moved()
    assert owner.call(STEP).metrics["grad_norm"] == known
    lab.until(owner.job_id, lambda: steps(lab, owner) == [3])


def test_repeats_the_calls_after_an_older_checkpoint(lab):
    owner = Owner(lab, keep_checkpoints=2)
    owner.call(BATCH, STEP, Save(), BATCH, STEP, Save(), BATCH, STEP)
    known = owner.logprobs()
    assert steps(lab, owner) == [3, 6]
    damage_newest(lab, owner)
    owner.moved()
    assert owner.logprobs() == known


def test_samples_a_repeated_publish_as_the_newest(lab):
    owner = Owner(lab)
    owner.call(Publish(), BATCH, STEP, Publish())
    known = owner.sampled([65, 66], max_tokens=6, temperature=0)
    assert steps(lab, owner) == [1]
    owner.moved()
    owner.logprobs()
    again = owner.sampled([65, 66], max_tokens=6, temperature=0)
    assert again.policy_version == known.policy_version == 4
    assert (again.token_ids, again.sampling_logprobs) == (known.token_ids, known.sampling_logprobs)


def test_awaits_newer_publish_until_it_is_repeated(lab, learner):
    learner.hold_at = math.inf
    owner = Owner(lab)
    owner.call(Publish(), BATCH, STEP, Publish())
    learner.hold_at = learner.batches + 1
    owner.moved()
    assert learner.reached.wait(60.0)
    arrived = []
    request = SampleRequest(request_id="r", policy=owner.job_id, prompt_ids=[65, 66], max_tokens=2)
    lab.pool.routes.sample([request], arrived.extend)
    lab.until(owner.job_id, lambda: arrived)
    assert arrived[0].error.type == "ServiceUnavailableError"
    learner.go_on.set()
    owner.logprobs()
    assert owner.sampled([65, 66], max_tokens=2).policy_version == 4


def test_resumes_with_its_optimizer_after_a_load_and_a_kill(lab):
    owner = Owner(lab, optimizer=AdamW(beta1=0.5, beta2=0.6, eps=1e-2))
    saved = owner.call(BATCH, STEP, Save()).policy
    owner.call(BATCH, STEP)
    known = owner.logprobs()
    owner.call(Load(policy=saved), BATCH, STEP)
    assert owner.logprobs() == known
    owner.moved()
    assert owner.logprobs() == known


def test_gives_loaded_weights_a_new_version(lab):
    owner = Owner(lab, keep_checkpoints=3)
    first = owner.call(Publish(), BATCH, STEP, Save()).policy
    published = owner.call(Publish()).version
    loaded = owner.call(Load(policy=first), Save())
    assert (loaded.version, published) == (7, 5)
    assert loaded.policy == f"{owner.job_id}@7"


def test_keeps_version_of_weights_until_they_change(lab):
    owner = Owner(lab)
    version = owner.call(BATCH, STEP, Publish()).version
    skipped = owner.call(IDLE, STEP)
    assert skipped.skipped
    assert owner.call(Save()).version == version
    owner.moved()
    assert owner.call(Save()).version == version
    assert owner.call(BATCH, STEP, Save()).version == owner.seq


def test_saves_a_publish_if_the_next_may_come_too_late(lab):
    owner = Owner(lab, checkpoint_every=10, keep_checkpoints=3)
    saved = []
    for _ in range(3):
        owner.call(BATCH, STEP, Publish())
        owner.logprobs()
        saved.append(steps(lab, owner))
    # The first, because none says yet how far apart they are; not the second, because the third is expected
    # at 11, in time; the third, because the fourth may be at 15.
    assert saved == [[3], [3], [3, 11]]


def test_saves_large_calls_early(lab, monkeypatch):
    owner = Owner(lab, keep_checkpoints=3)
    owner.logprobs()
    call = lab.service.next_call(owner.job_id, 0)
    monkeypatch.setattr("backend.jobs.own_loop_job._MOST_UNSAVED_BYTES", 2.5 * call.bytes)
    for _ in range(6):
        owner.logprobs()
    assert steps(lab, owner) == [3, 6]


def test_trains_no_tokens_by_a_refused_call(lab):
    owner = Owner(lab)
    sequence = {"token_ids": [65, 66, 67, 68], "loss_mask": [False, False, True, True]}
    owner.call(ForwardBackward(sequences=[sequence, sequence]), Logprobs(sequences=[sequence]))
    assert owner.call(ForwardBackward(sequences=[sequence], loss="ppo")).error is not None
    assert lab.service.job(owner.job_id).used_tokens == 4
    owner.moved()
    owner.logprobs()
    assert lab.service.job(owner.job_id).used_tokens == 4


def test_pauses_before_the_next_call_on_used_up_budget(lab):
    owner = Owner(lab, budget={"tokens": 6})
    owner.call(BATCH, STEP)
    assert lab.state(owner.job_id) is JobState.RUNNING
    owner.call(BATCH)
    owner.send(STEP)
    lab.until_state(owner.job_id, JobState.PAUSED)
    assert owner.calls.result(owner.job_id, owner.seq) is None
