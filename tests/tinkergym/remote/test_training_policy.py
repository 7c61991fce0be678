"""What a policy that a script trains sends, and how it ends. The service behind it is a stub."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.tinkergym.remote.policy_service import POLICY_ID, StubApi
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import ConflictError, InvalidRequestError, JobFailedError, NotFoundError
from tinkergym.remote.training_policy import TrainingPolicy
from tinkergym.schema.jobs.own_loop import PolicySpec
from tinkergym.schema.jobs.view import JobView
from tinkergym.testing.bundles import byte_bundle


@pytest.fixture
def api():
    return StubApi()


@pytest.fixture
def open_policy(api):
    """Open the policy as a script does; with the test's end, nothing waits for its calls."""
    opened = []

    def open_it(**view):
        known = {"created_at": 0.0, "updated_at": 0.0, "attempt": 1, **view}
        view = JobView(job_id=POLICY_ID, spec=PolicySpec(), state="running", **known)
        opened.append(TrainingPolicy(api, view, Renderer.from_bundle(byte_bundle())))
        return opened[-1]

    yield open_it
    api.service.done.set()
    for policy in opened:
        policy.close()


@pytest.fixture
def policy(open_policy):
    return open_policy()


def test_cancels_policy_without_place_immediately_and_fails_its_calls(api, policy):
    api.service.done.clear()
    step = policy.optim_step(1e-3)
    policy.cancel()
    with pytest.raises(JobFailedError):
        step.result(0)


def test_leaves_raising_block_without_waiting_for_results(api, policy):
    api.service.done.clear()
    with pytest.raises(KeyboardInterrupt), policy:
        step = policy.optim_step(1e-3)
        raise KeyboardInterrupt
    with pytest.raises(ConflictError):
        step.result(60.0)


def test_loads_version_by_any_reference_that_names_one(api, policy):
    api.found = {
        "job-2@best": SimpleNamespace(version=5, kept=[3, 5, 7]),
        "job-2@latest": SimpleNamespace(version=None, kept=[3, 5, 7]),
        "policy-2@step:3": SimpleNamespace(version=3, kept=[3]),
        POLICY_ID: SimpleNamespace(version=None, kept=[]),
    }
    for reference in ("job-2@best", "job-2@latest", "policy-2@step:3", "job-2/black@4"):
        policy.load(reference).result(60.0)
    loaded = [call.policy for call in api.service.stored]
    assert loaded == ["job-2@5", "job-2@7", "policy-2@3", "job-2/black@4"]
    for missing in (POLICY_ID, "job-3@best"):
        with pytest.raises(NotFoundError):
            policy.load(missing)
    policy.load("job-2@best").result(60.0)


def test_takes_token_ids_of_any_integer_type_as_prompt_only(policy):
    assert policy.prompt_ids([1, np.int64(5), 9]) == [1, 5, 9]
    assert policy.prompt_ids(np.array([1, 5, 9])) == [1, 5, 9]
    for wrong in ([1, 2.5], [1, "a"], [{"role": "user", "content": "hello"}, 3]):
        with pytest.raises(InvalidRequestError) as refused:
            policy.prompt_ids(wrong)
        assert refused.value.field == "prompt"


def test_samples_last_published_version_after_reopening(api, policy, open_policy):
    policy.sample("hello", deterministic=True)
    policy.optim_step(1e-3)
    policy.publish()
    policy.sample("hello", deterministic=True)
    open_policy(policy_version=2).sample("hello", deterministic=True)
    assert [request.policy_version for request in api.service.sampled] == [None, 2, 2]


def test_returns_entropies_of_prompt_with_each_of_its_completions(api, policy):
    found = policy.sample([1, 2], n=2, prompt_logprobs=True, prompt_entropies=True, deterministic=True)
    assert [one.prompt_entropies for one in found] == [[None, 0.5]] * 2
    assert [one.prompt_entropies for one in api.service.sampled] == [True, False]


def test_returns_text_of_completion_with_or_without_stop_string(policy):
    (completion,) = policy.sample("hello", deterministic=True)
    assert completion.text == policy.renderer.decode_answer(completion.token_ids)


def test_rejects_unknown_loss_with_the_nearest_name(policy):
    with pytest.raises(InvalidRequestError) as refused:
        policy.forward_backward([{"token_ids": [1, 2]}], loss="pppo")
    assert refused.value.field == "loss"
