"""Every setting of a call that a script makes arrives in the call that is sent."""

from __future__ import annotations

import pytest

from tests.tinkergym.remote.policy_service import POLICY_ID, StubApi, StubConnection
from tinkergym.agent.renderer import Renderer
from tinkergym.remote.training_policy import TrainingPolicy
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.own_loop import PolicySpec
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.policy_calls import (
    CallResult,
    CallView,
    ForwardBackward,
    Load,
    Logprobs,
    OptimStep,
    TokenSequence,
)
from tinkergym.testing.bundles import byte_bundle

SEQUENCE = {
    "token_ids": [5, 6, 7, 8],
    "loss_mask": [False, False, True, True],
    "sampling_logprobs": [None, None, -1.0, -2.0],
    "advantage": [0.0, 0.0, 1.0, -1.0],
    "temperature": 0.7,
    "reference_logprobs": [-1.5, -2.5],
}
PPO = {"clip_low": 0.1, "clip_high": 0.28, "aggregation": "constant", "constant_tokens": 7}
KL = {"entropy_coefficient": 0.01, "kl_coefficient": 0.2, "kl_estimator": "k2"}


class Scoring(StubConnection):
    """Answers calls for logprobs."""

    scores = ()

    def call(self, method, path, **settings):
        answer = super().call(method, path, **settings)
        number = path.rpartition("/")[2]
        if method == "POST" or not number.isdigit() or self.stored[int(number) - 1].op != "logprobs":
            return answer
        result = CallResult(logprobs=self.scores)
        return CallView(seq=int(number), done=True, result=result, state=JobState.RUNNING).model_dump_json()


@pytest.fixture
def api():
    api = StubApi()
    api.connection = Scoring()
    return api


@pytest.fixture
def policy(api):
    view = JobView(
        job_id=POLICY_ID, spec=PolicySpec(), state="running", created_at=0.0, updated_at=0.0, attempt=1
    )
    with TrainingPolicy(api, view, Renderer.from_bundle(byte_bundle())) as policy:
        yield policy


def test_sends_every_setting_of_a_loss(api, policy):
    policy.forward_backward([SEQUENCE], "ppo", **PPO, **KL).result(60)
    policy.forward_backward([TokenSequence(**SEQUENCE)], "gspo").result(60)
    policy.forward_backward([{"token_ids": [5, 6]}]).result(60)
    assert api.service.stored == [
        ForwardBackward(sequences=[SEQUENCE], loss="ppo", **PPO, **KL),
        ForwardBackward(sequences=[SEQUENCE], loss="gspo"),
        ForwardBackward(sequences=[{"token_ids": [5, 6]}], loss="cross_entropy"),
    ]


def test_sends_every_setting_of_a_step_and_a_load(api, policy):
    policy.optim_step(2e-3, max_grad_norm=0.3, weight_decay=0.1)
    policy.optim_step(1e-3)
    policy.load("job-2@4", with_optimizer=False)
    policy.load("job-2@4")
    policy.logprobs([SEQUENCE]).result(60)
    assert api.service.stored == [
        OptimStep(learning_rate=2e-3, max_grad_norm=0.3, weight_decay=0.1),
        OptimStep(learning_rate=1e-3, max_grad_norm=1.0, weight_decay=0.0),
        Load(policy="job-2@4", with_optimizer=False),
        Load(policy="job-2@4", with_optimizer=True),
        Logprobs(sequences=[SEQUENCE]),
    ]


def test_sends_gradient_of_custom_loss_reversed_on_its_tokens(api, policy):
    api.service.scores = [[-1.0, -2.0], [-3.0]]
    seen = []

    def gradient(logprobs):
        seen.append(logprobs)
        return 4.5, [[0.25, -0.5], [2.0]]

    other = {"token_ids": [9, 8]}
    result = policy.forward_backward_custom([SEQUENCE, other], gradient).result(60)
    assert (seen, result.loss) == ([[[-1.0, -2.0], [-3.0]]], 4.5)
    asked, sent = api.service.stored
    assert asked == Logprobs(sequences=[SEQUENCE, other])
    weighted = [{**SEQUENCE, "advantage": [0.0, 0.0, -0.25, 0.5]}, {**other, "advantage": [0.0, -2.0]}]
    assert sent == ForwardBackward(sequences=weighted, loss="linear")


def test_sends_every_setting_of_a_sample(api, policy):
    prompts = [[70, 71], "hello"]
    settings = {"max_tokens": 5, "temperature": 0.6, "top_p": 0.9, "top_k": 4, "top_logprobs": 3}
    policy.sample_many(
        prompts,
        n=2,
        seeds=[4, 3, 2, 1],
        stop=["a", "b"],
        prompt_logprobs=True,
        top_prompt_logprobs=6,
        deterministic=True,
        **settings,
    )
    requests = sorted(api.service.sampled, key=lambda request: request.request_id)
    ids = [policy.prompt_ids(prompt) for prompt in prompts]
    assert [(one.prompt_ids, one.seed) for one in requests] == [
        *((ids[0], 4), (ids[0], 3), (ids[1], 2), (ids[1], 1))
    ]
    # The same for all completions of a prompt.
    of_prompt = [(one.prompt_logprobs, one.top_prompt_logprobs) for one in requests]
    assert of_prompt == [(True, 6), (False, 0)] * 2
    for request in requests:
        assert {name: getattr(request, name) for name in settings} == settings
        assert (request.policy, request.stop) == (POLICY_ID, ("a", "b"))
        assert request.stop_ids == list(policy.renderer.stop_ids)


def test_varies_seeds_of_samples_by_prompt_and_number(api, policy):
    policy.sample("a", seed=3, n=2, stop="b", deterministic=True)
    policy.sample_many(["a", "b"], n=2, deterministic=True)
    assert [one.seed for one in api.service.sampled] == [6, 7, 0, 1, 2, 3]
    assert [one.stop for one in api.service.sampled[:2]] == [("b",)] * 2
