"""A user's own loop trains a policy by calls: in order, exactly once, through kills."""

import runpy
from pathlib import Path

import pytest

from tests.journeys.disturbed_job import pool_workers
from tinkergym.cli.named_policy import named_policy
from tinkergym.errors import (
    ConflictError,
    InvalidRequestError,
    JobFailedError,
    NotFoundError,
    UnknownModelError,
)
from tinkergym.schema.events import JobState
from tinkergym.schema.ids import PolicyRef

pytestmark = pytest.mark.service

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loop.py"
TEXT = [1, 5, 9, 13, 17, 21]


def sequence(shift=0, **settings):
    return {"token_ids": [token + shift for token in TEXT], **settings}


def train(policy, updates):
    for number in updates:
        policy.forward_backward([sequence(number)])
        policy.forward_backward([sequence(number + 1), sequence(number + 2)])
        policy.optim_step(1e-2)


def weights_of(client, policy, saved):
    ref = PolicyRef.parse(saved)
    return next(c.sha256 for c in client.job(ref.owner).checkpoints() if c.policy_version == ref.version)


def test_rejects_unknown_model_before_there_is_a_policy(client):
    before = {one.job_id for one in client.jobs()}
    with pytest.raises(UnknownModelError):
        client.create_policy(model="no-such-model")
    assert {one.job_id for one in client.jobs()} == before


@pytest.mark.full("kills a pool in Ray; `test_own_loop_recovery` kills one in this process")
def test_applies_acknowledged_calls_once_also_when_worker_is_killed(client):
    hashes = []
    for kills in (False, True):
        with client.create_policy(seed=3, checkpoint_every=5) as policy:
            policy.logprobs([sequence()]).result()  # now its worker is there
            train(policy, range(6))
            if kills:  # with calls under way
                for pool in pool_workers():
                    pool.kill()
            train(policy, range(6, 8))
            hashes.append(weights_of(client, policy, policy.save().result()))
            policy.cancel()
    assert hashes[0] == hashes[1]


def test_learns_as_told_and_samples_as_published(client):
    with client.create_policy(model="nano") as policy:
        before = policy.logprobs([sequence()]).result()[0]
        for _ in range(10):
            policy.forward_backward([sequence()])
            policy.optim_step(1e-2)
        after = policy.logprobs([sequence()]).result()[0]
        assert sum(after) > sum(before) + 5
        policy.publish()
        (completion,) = policy.sample(TEXT[:3], max_tokens=3, temperature=0)
        assert completion.token_ids == TEXT[3:]
        assert (
            policy.sample("hello", n=3, max_tokens=4, seed=1)
            == policy.sample("hello", n=3, max_tokens=4, seed=1)
            or len(policy.sample("hello", n=3)) == 3
        )
        policy.cancel()


def test_stops_samples_at_a_text_and_returns_token_logprobs(client):
    with client.create_policy(model="nano") as policy:
        policy.publish()
        free, _ = policy.sample("hello", n=2, max_tokens=24, seed=3, stop_ids=[])
        assert free.text == policy.text(free)
        assert (free.top_logprobs, free.prompt_logprobs) == (None, None)
        stop = policy.renderer.decode(free.token_ids[4:6])
        asked = policy.sample(
            "hello",
            **{"n": 2, "max_tokens": 24, "seed": 3, "stop_ids": [], "stop": stop, "top_logprobs": 2},
            **{"prompt_logprobs": True, "top_prompt_logprobs": 2},
        )
        first = asked[0]
        assert stop in policy.renderer.decode(first.token_ids)
        assert stop not in policy.renderer.decode(first.token_ids[:-1])
        assert first.token_ids == free.token_ids[: len(first.token_ids)]
        assert policy.text(first) == policy.renderer.decode(first.token_ids).partition(stop)[0]
        assert all(len(one) == 2 for one in first.top_logprobs)
        prompt = policy.prompt_ids("hello")
        (logprobs,) = policy.logprobs([{"token_ids": prompt}]).result()
        for completion in asked:
            assert completion.prompt_logprobs[0] is None
            assert completion.prompt_logprobs[1:] == pytest.approx(logprobs, abs=1e-4)
            assert [top and len(top) for top in completion.top_prompt_logprobs] == [
                None,
                *[2] * len(logprobs),
            ]
        for wrong in ({"top_logprobs": 21}, {"stop": [""]}, {"n": 0}):
            with pytest.raises(InvalidRequestError) as refused:
                policy.sample("hello", **wrong)
            assert refused.value.field.split(".")[0] == next(iter(wrong))
        with pytest.raises(InvalidRequestError) as too_many:
            policy.sample("hello", top_logprobs=20, max_tokens=10**6)
        assert too_many.value.field == "requests.top_logprobs"
        policy.cancel()


def test_repeats_deterministic_completions_to_the_bit_per_prompt(client):
    with client.create_policy(model="nano") as policy:
        policy.publish()
        prompts = ["hello", "a cat", TEXT]
        asked = {"n": 2, "max_tokens": 12, "stop_ids": [], "prompt_logprobs": True}

        def deterministic():
            groups = policy.sample_many(prompts, deterministic=True, **asked)
            return [[one.model_copy(update={"request_id": ""}) for one in group] for group in groups]

        first = deterministic()
        # Others sample meanwhile, in batches of other sizes.
        for others in (1, 7):
            policy.sample("something else", n=others, max_tokens=4)
            assert deterministic() == first
        free = policy.sample_many(prompts, **asked)
        for prompt, own, others in zip(prompts, first, free, strict=True):
            assert [one.token_ids for one in own] == [one.token_ids for one in others]
            assert len(own) == 2
            assert {len(one.prompt_logprobs) for one in own} == {len(policy.prompt_ids(prompt))}
        (alone,) = policy.sample("a cat", seed=2, max_tokens=12, stop_ids=[])
        assert alone.token_ids == first[1][0].token_ids
        assert policy.sample_many([]) == []
        for wrong, field in (({"seeds": [1]}, "seeds"), ({"n": 0}, "n")):
            with pytest.raises(InvalidRequestError) as refused:
                policy.sample_many(prompts, **wrong)
            assert refused.value.field == field
        policy.cancel()


def test_matches_built_in_loss_by_custom_one_computing_the_same(client):
    hashes = []
    with client.create_policy(seed=1) as built_in, client.create_policy(seed=1) as custom:
        batch = [sequence(), sequence(7)]
        total = 2 * (len(TEXT) - 1)

        def mean_likelihood(logprobs):
            loss = -sum(map(sum, logprobs)) / total
            return loss, [[-1 / total] * len(own) for own in logprobs]

        theirs = built_in.forward_backward(batch).result()
        ours = custom.forward_backward_custom(batch, mean_likelihood).result()
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
        for policy in (built_in, custom):
            step = policy.optim_step(1e-2).result()
            hashes.append(step.metrics["grad_norm"])
            policy.cancel()
    assert hashes[0] == pytest.approx(hashes[1], rel=1e-5)


def test_loads_saved_version_again_and_begins_from_it(client):
    with client.create_policy() as policy:
        train(policy, range(2))
        saved = policy.save().result()
        known = policy.logprobs([sequence()]).result()
        train(policy, range(2, 4))
        assert policy.logprobs([sequence()]).result() != known
        policy.load(saved)
        assert policy.logprobs([sequence()]).result() == known
        with client.create_policy(initial_policy=saved) as other:
            assert other.logprobs([sequence()]).result() == known
            other.cancel()
        policy.cancel()


def test_continues_copy_alike_and_separately_and_deletes_it_alone(client):
    with client.create_policy(seed=5) as policy:
        train(policy, range(2))
        with policy.copy() as alike, policy.copy(with_optimizer=False) as fresh:
            known = policy.logprobs([sequence()]).result()
            for one in (alike, fresh):
                assert one.logprobs([sequence()]).result() == known
            for one in (policy, alike, fresh):
                train(one, range(2, 3))
            ahead = [one.logprobs([sequence()]).result() for one in (policy, alike, fresh)]
            assert ahead[0] == ahead[1] != ahead[2]
            assert alike.delete() > 0
            with pytest.raises(NotFoundError):
                client.job(alike.job_id)
            assert policy.logprobs([sequence()]).result() == ahead[0]
            fresh.cancel()
        policy.cancel()


def test_tells_what_is_wrong_with_call_and_continues(client):
    with client.create_policy() as policy:
        with pytest.raises(InvalidRequestError) as refused:
            policy.forward_backward([sequence()], "ppo", clip=0.1)
        assert refused.value.field == "clip"
        with pytest.raises(InvalidRequestError) as without:
            policy.forward_backward([sequence()], "ppo").result()
        assert without.value.field == "sequences.sampling_logprobs"
        with pytest.raises(ConflictError):
            policy.optim_step(1e-2).result()  # no gradient waits
        policy.forward_backward([sequence()])
        with pytest.raises(ConflictError):
            policy.save().result()  # a gradient waits
        policy.optim_step(1e-2).result()
        policy.cancel()


def test_frees_place_of_idle_policy_and_restores_it_as_was(client):
    with client.create_policy(idle_seconds=0.5) as policy:
        train(policy, range(2))
        known = policy.logprobs([sequence()]).result()
        for event in client.job(policy.job_id).events():
            if getattr(event.body, "state", None) is JobState.WAITING_FOR_CLIENT:
                break
        assert policy.logprobs([sequence()]).result() == known


def test_reopens_policy_in_another_script_and_continues_from_its_publish(client):
    with client.create_policy(model="nano") as policy:
        train(policy, range(2))
        version = policy.publish().result()
        known = policy.logprobs([sequence()]).result()
        samples = policy.sample("hello", n=2, max_tokens=8)
        train(policy, range(2, 3))
    found = client.find_policy(policy.job_id)
    for name in (policy.job_id, found.policy_id):
        with client.training_policy(name) as again:
            assert again.job_id == policy.job_id
            assert {one.policy_version for one in again.sample("hello", n=2, max_tokens=8)} == {version}
    with client.training_policy(policy.job_id) as again:
        assert [one.token_ids for one in again.sample("hello", n=2, max_tokens=8)] == [
            one.token_ids for one in samples
        ]
        assert again.logprobs([sequence()]).result() != known
        with pytest.raises(NotFoundError):
            again.load(f"{policy.job_id}@999").result()
        assert again.publish().result() > version
        again.cancel()


@pytest.mark.full("starts a pool of another model, and trains for twelve steps")
def test_learns_by_the_example(service, capsys):
    rewards = runpy.run_path(str(EXAMPLE))["main"](steps=12)
    assert sum(rewards[-3:]) > sum(rewards[:3]) + 0.3


@pytest.mark.full("starts a pool of another model")
def test_shows_images_in_own_loop_with_matching_logprobs(client):
    import numpy as np

    pictures = np.random.default_rng(0).integers(0, 255, (2, 64, 64, 3), np.uint8)

    def shown(*numbers):
        parts = [{"type": "image", "image": pictures[number]} for number in numbers]
        return [{"role": "user", "content": [*parts, {"type": "text", "text": "Find the area."}]}]

    with client.create_policy(model="nano-vl") as policy:
        (answer,) = policy.sample(shown(0, 1), max_tokens=4)
        first, second = policy.prompt_images(shown(0, 1))
        ids = policy.prompt_ids(shown(0, 1))
        record = {
            "token_ids": [*ids, *answer.token_ids],
            "loss_mask": [False] * len(ids) + [True] * len(answer.token_ids),
            "images": [first, second],
        }
        swapped = [
            first.model_copy(update={"sha256": second.sha256}),
            second.model_copy(update={"sha256": first.sha256}),
        ]
        found = policy.logprobs([record, {**record, "images": swapped}]).result()
        assert found[0] == pytest.approx(answer.sampling_logprobs, abs=1e-5)
        assert found[1] != pytest.approx(answer.sampling_logprobs, abs=1e-3)
        for _ in range(3):
            policy.forward_backward([record])
            policy.optim_step(1e-2)
        assert sum(policy.logprobs([record]).result()[0]) > sum(found[0])
        policy.publish()
        (deterministic,) = policy.sample(shown(1), max_tokens=2, deterministic=True)
        assert len(deterministic.token_ids) <= 2
        with pytest.raises(InvalidRequestError) as caught:
            policy.logprobs([{**record, "images": [first]}]).result()
        assert caught.value.field == "sequences.images"
        policy.cancel()


def test_takes_what_was_saved_last_as_ended_policys_newest_version(client):
    sampling = {"temperature": 0, "max_turn_tokens": 4}
    with client.create_policy(seed=3) as policy:
        published = policy.publish().result()
        train(policy, range(2))
        saved = policy.save().result()
        version = PolicyRef.parse(saved).version
        assert version > published
        before = client.policy(saved, **sampling).act("hello")
        policy.cancel()
    job = client.job(policy.job_id)
    with pytest.raises(JobFailedError):
        job.wait()
    assert job.view().policy_version == version
    for named in (
        client.policy(saved, **sampling),
        named_policy(client, policy.job_id, sampling),
        job.policy(**sampling),
    ):
        assert named.act("hello") == before
        assert named.last_version == version
