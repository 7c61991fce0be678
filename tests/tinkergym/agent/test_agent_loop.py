import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tinkergym.agent.agent_loop import AgentLoop, AgentState
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import EpisodeProtocolError, InternalServiceError
from tinkergym.messages import assistant, system, user
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.jobs.parts import Limits
from tinkergym.schema.sampling import Completion, SampleRequest
from tinkergym.testing import byte_bundle
from tinkergym.trajectory.trajectory import StopReason, Trajectory

RENDERER = Renderer.from_bundle(byte_bundle())


def agent(renderer=RENDERER, **settings):
    return AgentLoop(renderer, EpisodePlan(**{"episode_id": "e", "seed": 3, "policy": "p", **settings}))


def answer(request, text="yes", *, cut=False, version=4):
    ids = RENDERER.encode_answer(text)
    ids = ids[:-1] if cut else ids
    return Completion(
        request_id=request.request_id,
        token_ids=ids,
        sampling_logprobs=[-0.5] * len(ids),
        finish_reason="length" if cut else "stop",
        policy_version=version,
    )


def one_turn(*step, **settings):
    """Return a loop that has been through one step of the environment, and the request that followed."""
    loop = agent(**settings)
    request = loop.begin("go")
    loop.receive(answer(request))
    return loop, loop.stepped(*step)


def test_passes_episode_through_its_states_to_a_trajectory():
    loop = agent(
        decoding=Decoding(seed=10, temperature=0.7, max_turn_tokens=9), policy_version=4, task_index=2
    )
    assert loop.state is AgentState.PENDING
    first = loop.begin("2+2?", {}, environment_prompt="Be brief.")
    assert loop.state is AgentState.GENERATING
    assert first == SampleRequest(
        request_id="e/0",
        policy="p",
        policy_version=4,
        prompt_ids=RENDERER.start([system("Be brief."), user("2+2?")]),
        max_tokens=9,
        temperature=0.7,
        seed=10,
        stop_ids=RENDERER.stop_ids,
        session_id="e",
    )
    assert loop.receive(answer(first, "5")) == "5"
    assert loop.state is AgentState.INTERACTING
    second = loop.stepped("No.", -0.5, False, False, {"metrics": {"tries": 1}})
    assert (second.request_id, second.seed) == ("e/1", 11)
    loop.receive(answer(second, "4"))
    assert loop.stepped("Right.", np.float32(1.0), np.True_, False, {}) is None
    assert loop.state is AgentState.TERMINATED
    trajectory = loop.trajectory()
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory
    assert trajectory.transcript == [
        ("user", "2+2?"),
        ("assistant", "5"),
        ("user", "No."),
        ("assistant", "4"),
        ("user", "Right."),
    ]
    assert [turn.reward for turn in trajectory.turns] == [-0.5, 1.0]
    assert trajectory.turns[0].metrics == {"tries": 1.0}
    assert (trajectory.stop_reason, trajectory.terminated, trajectory.truncated) == (
        "terminated",
        True,
        False,
    )
    assert (trajectory.seed, trajectory.task_index, trajectory.completed) == (3, 2, True)


def test_acts_on_the_text_before_a_stop_string():
    loop = agent(decoding=Decoding(stop="\n"))
    first = loop.begin("2+2?")
    assert first.stop == ("\n",)
    ended = answer(first, "4\n", cut=True).model_copy(update={"text": "4", "finish_reason": "stop"})
    assert loop.receive(ended) == "4"
    second = loop.stepped("3+3?", 0.0, False, False)
    # Its tokens stay as they were sampled, and the template closes the answer.
    assert (
        second.prompt_ids[: len(first.prompt_ids) + len(ended.token_ids)]
        == first.prompt_ids + ended.token_ids
    )
    assert RENDERER.decode(second.prompt_ids).count("<|im_end|>") == 3


@given(st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8), st.booleans()), min_size=1, max_size=5))
def test_grows_prompts_token_by_token_keeping_sampled_ids(turns):
    loop = agent(decoding=Decoding(max_turn_tokens=100))
    request, sampled, previous = loop.begin(turns[0][0]), [], []
    for number, (_, text, cut) in enumerate(turns, start=1):
        assert request.prompt_ids[: len(previous)] == previous
        completion = answer(request, text, cut=cut and bool(text))
        previous = request.prompt_ids + completion.token_ids
        sampled.append(completion.token_ids)
        loop.receive(completion)
        following = turns[number][0] if number < len(turns) else ""
        request = loop.stepped(following, 0.0, number == len(turns), False)
    trajectory = loop.trajectory()
    (segment,) = trajectory.segments
    assert segment.token_ids == previous
    assert [segment.token_ids[turn.start : turn.end] for turn in trajectory.turns] == sampled
    assert sum(segment.loss_mask) == sum(map(len, sampled)) == trajectory.sampled_tokens
    if not any(cut and text for _, text, cut in turns):
        messages = [m for seen, said, _ in turns for m in (user(seen), assistant(said))]
        assert RENDERER.start(messages[:-1]) + sampled[-1] == segment.token_ids


def test_prefers_the_plans_system_prompt_even_when_empty():
    def first_prompt(plan, environment):
        return RENDERER.decode(
            agent(system_prompt=plan).begin("x", environment_prompt=environment).prompt_ids
        )

    assert "mine" in first_prompt("mine", "theirs")
    assert "theirs" in first_prompt(None, "theirs")
    assert "system" not in first_prompt("", "theirs")


def test_takes_mapping_with_text_as_an_observation():
    loop = agent()
    assert "from a dict" in RENDERER.decode(loop.begin({"text": "from a dict"}).prompt_ids)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_turns": 1}, StopReason.TURN_LIMIT),
        ({"max_episode_tokens": 4}, StopReason.TOKEN_LIMIT),
    ],
)
def test_truncates_at_a_limit_and_keeps_the_reward(limits, reason):
    loop, request = one_turn("more", 0.25, False, False, {}, limits=Limits(**limits))
    assert request is None
    trajectory = loop.trajectory()
    assert (trajectory.stop_reason, trajectory.terminated, trajectory.truncated) == (reason, False, True)
    assert trajectory.episode_return == 0.25
    assert trajectory.completed


def test_lets_last_answer_use_the_rest_of_the_budget():
    _, request = one_turn("more", 0.0, False, False, {}, limits=Limits(max_episode_tokens=6))
    assert request.max_tokens == 2


def test_gives_answer_no_more_room_than_the_context_has():
    prompt = len(RENDERER.start([user("go")]))
    narrow = Renderer.from_bundle(byte_bundle(context_length=prompt + 5))
    loop = agent(narrow)
    request = loop.begin("go")
    assert request.max_tokens == 5
    loop.receive(answer(request))
    assert loop.stepped("more", 1.0, False, False) is None
    assert loop.trajectory().stop_reason is StopReason.CONTEXT_LIMIT
    assert "context" in loop.error
    assert loop.trajectory().completed


def test_returns_no_zero_for_first_prompt_without_room():
    loop = agent(Renderer.from_bundle(byte_bundle(context_length=10)))
    assert loop.begin("far too long for ten tokens") is None
    assert loop.trajectory().stop_reason is StopReason.CONTEXT_LIMIT
    assert not loop.trajectory().completed


def test_tells_the_environments_own_truncation_from_a_termination():
    loop, _ = one_turn("cut", 0.0, False, True, {})
    trajectory = loop.trajectory()
    assert trajectory.stop_reason is StopReason.TRUNCATED
    assert (trajectory.terminated, trajectory.truncated) == (False, True)


@pytest.mark.parametrize(
    "reward", [math.nan, math.inf, -math.inf, 10**400, 1e13, None, "1.0", np.ones(1), 1j]
)
def test_names_reward_that_is_no_finite_number(reward):
    loop, request = one_turn("x", reward, False, False, {})
    assert request is None
    trajectory = loop.trajectory()
    assert trajectory.stop_reason is StopReason.INVALID_REWARD
    assert "reward" in trajectory.error
    assert not trajectory.completed


@pytest.mark.parametrize(
    "reward",
    [
        1,
        True,
        np.int64(1),
        np.float32(1),
        np.bool_(True),
        np.array(1.0),
        np.array(1),
        Fraction(1),
        torch.tensor(1.0),
    ],
)
def test_takes_any_finite_number_as_a_reward(reward):
    loop, _ = one_turn("x", reward, True, False, {})
    assert loop.trajectory().episode_return == 1.0


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ((None, 0.0, False, False, {}), "observation must be a str"),
        (({"image": 1}, 0.0, False, False, {}), "is not an image"),
        (("\ud800", 0.0, False, False, {}), "surrogate"),
        (("x", 0.0, 0, False, {}), "terminated must be a bool"),
        (("x", 0.0, False, None, {}), "truncated must be a bool"),
        (("x", 0.0, False, False, ["info"]), "info must be a dict"),
        (("x", 0.0, False, False, {"metrics": 3}), "metrics"),
        (("x", 0.0, False, False, {"metrics": {"a": math.nan}}), "'a'"),
        (("x", 0.0, False, False, {"metrics": dict.fromkeys(range(101), 1.0)}), "at most 100"),
        (("x", 0.0, False, False, {"metrics": {"a" * 101: 1.0}}), "at most 100"),
    ],
)
def test_ends_episode_on_garbage_from_step_and_says_what(step, words):
    loop, request = one_turn(*step)
    assert request is None
    assert loop.trajectory().stop_reason is StopReason.ENVIRONMENT_ERROR
    assert words in loop.trajectory().error
    assert (loop.trajectory().terminated, loop.trajectory().truncated) == (False, False)


class Mute:
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize("step", [(Mute(), 0.0, False, False, {}), ("x", Mute(), False, False, {})])
def test_ends_only_the_episode_on_an_object_without_repr(step):
    loop, request = one_turn(*step)
    assert request is None
    assert "Mute, whose str() failed: RuntimeError" in loop.trajectory().error


def test_lets_ended_environment_show_nothing():
    loop, _ = one_turn(None, 1.0, True, False, {})
    assert loop.trajectory().stop_reason is StopReason.TERMINATED


@pytest.mark.parametrize("observation", [None, 3, ["text"], {"text": 3}, "\udc00"])
def test_ends_episode_on_garbage_from_reset(observation):
    loop = agent()
    assert loop.begin(observation) is None
    assert loop.trajectory().stop_reason is StopReason.ENVIRONMENT_ERROR
    assert not loop.trajectory().segments


@pytest.mark.parametrize(
    "change",
    [
        {"request_id": "other"},
        {"token_ids": [], "sampling_logprobs": []},
        {"sampling_logprobs": [-1.0]},
        {"sampling_logprobs": [math.nan] * 4},
    ],
)
def test_ends_episode_on_unusable_completion_without_recording_it(change):
    loop = agent()
    good = answer(loop.begin("x"))
    bad = Completion.model_construct(**{**good.model_dump(), **change})
    with pytest.raises(InternalServiceError, match="is invalid"):
        loop.receive(bad)
    assert loop.trajectory().stop_reason is StopReason.SAMPLING_FAILED
    assert loop.trajectory().sampled_tokens == 0


def test_keeps_whole_turns_on_failure_between_turns():
    loop, _ = one_turn("more", 1.0, False, False, {})
    loop.fail(StopReason.ABANDONED, "closed")
    loop.fail(StopReason.SAMPLING_FAILED, "too late")
    trajectory = loop.trajectory()
    assert (trajectory.stop_reason, trajectory.error) == (StopReason.ABANDONED, "closed")
    assert len(trajectory.turns) == 1
    assert trajectory.segments[0].loss_mask[-1]


def test_earns_nothing_in_a_turn_whose_step_does_not_return():
    loop, request = one_turn("more", 1.0, False, False, {})
    loop.receive(answer(request, "jump", cut=True, version=5))
    loop.fail(StopReason.ENVIRONMENT_ERROR, "it broke")
    trajectory = loop.trajectory()
    first, last = trajectory.turns
    assert (last.observation, last.action, last.reward, last.metrics) == ("more", "jump", 0.0, {})
    assert (last.policy_version, last.finish_reason) == (5, "length")
    segment = trajectory.segments[0]
    assert sum(segment.loss_mask) == (first.end - first.start) + (last.end - last.start)
    assert last.end == len(segment.token_ids)
    assert trajectory.transcript == [
        ("user", "go"),
        ("assistant", "yes"),
        ("user", "more"),
        ("assistant", "jump"),
    ]


def test_keeps_paid_answer_as_one_turn_though_next_prompt_fails():
    loop, request = one_turn("more", 1.0, False, False, {})
    assert request is not None
    loop.fail(StopReason.EPISODE_TIMEOUT)
    assert [turn.reward for turn in loop.trajectory().turns] == [1.0]
    assert loop.trajectory().final_observation == "more"


def test_rejects_calls_out_of_order():
    loop = agent()
    with pytest.raises(EpisodeProtocolError):
        loop.stepped("x", 0.0, False, False)
    with pytest.raises(EpisodeProtocolError):
        loop.trajectory()
    request = loop.begin("x")
    with pytest.raises(EpisodeProtocolError):
        loop.begin("x")
    loop.receive(answer(request))
    with pytest.raises(EpisodeProtocolError):
        loop.receive(answer(request))
