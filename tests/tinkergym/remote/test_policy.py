from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import numpy as np
import pytest

import tinkergym as tg
from tinkergym.errors import (
    EpisodeProtocolError,
    InvalidRequestError,
    NotFoundError,
    PromptTooLongError,
    UnknownModelError,
)
from tinkergym.messages import assistant, system, user
from tinkergym.remote.policy import Policy
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import Sampling
from tinkergym.schema.jobs.seats import SharedWith, Train
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.parsing import parse_spec
from tinkergym.schema.structured import Regex
from tinkergym.spaces import Chat, Text
from tinkergym.wrappers import AgainstOpponent


class Countdown(tg.TextEnv):
    """Two turns; pays for naming how many messages the policy has seen."""

    system_prompt = "Count the messages."

    def start(self, options):
        self.turns = 0
        return f"Start {self.np_random.integers(10)}."

    def reply(self, action):
        self.turns += 1
        return "Go on.", float(action == str(2 * self.turns)), self.turns == 2


def count_messages(prompt: str) -> str:
    return str(prompt.count("<|im_start|>") - 1)


@pytest.fixture
def policy(start_service):
    start_service(count_messages)
    with tg.Client() as client:
        yield client.policy("nano")


def test_plays_episode_of_several_turns_as_one_conversation(policy):
    chat = policy.chat()
    # Without a system prompt the policy sees 1 message, then 3 (its own answer among them).
    assert (chat.act("first"), policy.chat().act("first"), policy.act("other")) == ("1", "1", "1")
    assert chat.act("second") == "3"
    chat.reset()
    assert chat.act("first again") == "1"


def echo_seeds(service):
    """Return what was asked: each prompt with its seed."""
    return sorted((tuple(one.prompt_ids), one.seed) for batch in service.sampled for one in batch)


def test_answers_questions_independently_in_any_order_and_thread(start_service, connect):
    service = start_service(lambda prompt: prompt.partition("user\n")[2][:3])
    client = connect()
    questions = [f"{number:03}" for number in range(64)]
    policy = client.policy("nano", seed=5)
    assert [policy.act(question) for question in questions] == questions
    in_order = echo_seeds(service)
    assert len({seed for _, seed in in_order}) == 64
    for play in ("alone", "threads"):
        service.sampled.clear()
        if play == "alone":
            for question in questions:
                client.policy("nano", seed=5).act(question)
        else:
            shared = client.policy("nano", seed=5)
            with ThreadPoolExecutor(16) as threads:
                assert list(threads.map(shared.act, questions)) == questions
        assert echo_seeds(service) == in_order


def test_samples_anew_when_asked_again(start_service, connect):
    service = start_service(count_messages)
    policy = connect().policy("nano")
    assert [policy.act("hello") for _ in range(3)] == ["1", "1", "1"]
    assert len({seed for _, seed in echo_seeds(service)}) == 3


class Dialogue(gym.Env):
    """Opens with a conversation and goes on with a tool's answer."""

    observation_space, action_space = Chat(), Text()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return [system("Count."), user("1?"), assistant("1"), user("2?")], {}

    def step(self, action):
        if action == "4":
            return [{"role": "tool", "content": "right"}, user("And now?")], 0.0, False, False, {}
        return [], float(action == "7"), True, False, {}


def test_answers_conversations(policy):
    observation, _ = Dialogue().reset(seed=0)
    chat = policy.chat()
    assert chat.act(observation) == "4"
    assert chat.act(Dialogue().step("4")[0]) == "7"
    with pytest.raises(EpisodeProtocolError, check=lambda error: error.field == "observation"):
        policy.act({"text": "look", "screen": np.zeros((2, 2, 3), np.uint8)})


def test_trains_in_an_environment_that_shows_conversations(start_service):
    start_service(count_messages)
    with tg.Client() as client:
        group = tg.GRPO(group_size=2, groups_per_step=1)
        job = client.train(Dialogue, steps=1, algorithm=group)
        job.wait()
        assert [event.body.reward_mean for event in job.events() if event.body.type == "step"] == [1.0]


def test_runs_readme_snippet_for_a_job_and_its_environment(start_service, connect):
    start_service(count_messages)
    client = connect()
    tg.register("here/Countdown-v0", Countdown)
    job = client.train("here/Countdown-v0", steps=1, algorithm=tg.GRPO(group_size=2, groups_per_step=1))
    job.wait()
    chat = job.policy().chat()
    env = tg.make("here/Countdown-v0")
    observation, _info = env.reset(seed=1)
    observation, reward, _terminated, _truncated, _info = env.step(chat.act(observation))
    assert reward == 1.0  # so the environment's system prompt was there, as in training
    _, reward, terminated, _, _ = env.step(chat.act(observation))
    assert terminated


def test_asks_for_version_and_tells_it(start_service, connect):
    service = start_service()
    client = connect()
    policy = client.policy("nano")
    policy.version = 0
    policy.act("hello")
    assert service.sampled[-1][0].policy_version == 0
    assert policy.last_version == 0


def test_asks_with_same_seeds_by_the_same_seed(start_service, connect):
    service = start_service()
    client = connect()
    for seed in (1, 1, 2):
        client.policy("nano", seed=seed).act("hello")
    one, again, other = (batch[0].seed for batch in service.sampled)
    assert one == again != other


def test_sends_structure_with_every_act_chat_and_evaluation(start_service, connect):
    service = start_service(count_messages)
    shape = Regex(pattern="[0-9]+")
    policy = connect().policy("nano", structured=shape)
    policy.act("hello")
    policy.chat().act("hello")
    policy.evaluate(Countdown, episodes=2)
    asked = [request.structured for batch in service.sampled for request in batch]
    assert len(asked) == 2 + 4
    assert set(map(repr, asked)) == {repr(shape)}
    with pytest.raises(InvalidRequestError) as caught:
        connect().policy("nano", structured="[0-8]")
    assert caught.value.field == "structured"


def test_sends_top_p_and_top_k_likewise_with_every_request(start_service, connect):
    service = start_service(count_messages)
    policy = connect().policy("nano", top_p=0.9, top_k=40)
    policy.act("hello")
    policy.chat().act("hello")
    policy.evaluate(Countdown, episodes=1, temperature=1.0)
    policy.evaluate(Countdown, episodes=1, temperature=1.0, top_p=0.5)
    policy.evaluate(Countdown, episodes=1, temperature=1.0, top_p=1, top_k=7)
    asked = [(request.top_p, request.top_k) for batch in service.sampled for request in batch]
    assert asked == 4 * [(0.9, 40)] + 2 * [(0.5, 40)] + 2 * [(1.0, 7)]


@pytest.mark.parametrize("stop", ["2", ["x", "2"]])
def test_ends_actions_and_evaluations_before_a_stop_string(start_service, connect, stop):
    service = start_service(lambda prompt: "12345")
    policy = connect().policy("nano", stop=stop)
    assert policy.act("hello") == policy.chat().act("hello") == "1"
    (episode,) = policy.evaluate(Countdown, episodes=1).trajectories
    assert {text for role, text in episode.transcript if role == "assistant"} == {"1"}
    (free,) = policy.evaluate(Countdown, episodes=1, stop=()).trajectories
    assert {text for role, text in free.transcript if role == "assistant"} == {"12345"}
    assert {request.stop for batch in service.sampled for request in batch} == {policy.decoding.stop, ()}


def test_draws_from_whole_distribution_unless_told_otherwise(start_service):
    service = start_service(count_messages)
    group = tg.GRPO(group_size=2, groups_per_step=1)
    with tg.Client() as client:
        job = client.train(Dialogue, steps=1, algorithm=group)
        job.wait()
        service.sampled.clear()
        job.policy().act("hello")
        job.policy(top_p=0.7, top_k=5).act("hello")
    asked = [(request.top_p, request.top_k) for batch in service.sampled for request in batch]
    assert asked == [(1.0, 0), (0.7, 5)]


@pytest.mark.parametrize(
    "cut", [{"top_p": 0}, {"top_p": 1.5}, {"top_p": "much"}, {"top_k": -1}, {"top_k": 2.5}]
)
def test_refuses_wrong_top_p_and_top_k_before_asking(start_service, cut, connect):
    service = start_service(count_messages)
    client = connect()
    for wrong in (
        lambda: client.policy("nano", **cut),
        lambda: client.policy("nano").evaluate(Countdown, episodes=1, **cut),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            wrong()
        assert caught.value.field == next(iter(cut))
    assert service.sampled == []


def test_asks_again_for_failed_answer(start_service, connect):
    service = start_service(count_messages)
    policy = connect(patience_seconds=0.0).policy("nano")
    chat = policy.chat()
    chat.act("first")
    service.break_next("POST /v1/sample", status=500)
    with pytest.raises(tg.TinkerGymError):
        chat.act("second")
    assert chat.act("second") == "3"


def test_rejects_too_long_first_observation_by_name(start_service, connect):
    start_service(context_length=64)
    with pytest.raises(PromptTooLongError):
        connect().policy("nano").act("word " * 100)


def test_says_where_to_reset_a_full_conversation(start_service, connect):
    start_service(context_length=120)
    chat = connect().policy("nano").chat()
    chat.act("word " * 10)
    with pytest.raises(EpisodeProtocolError, check=lambda error: error.code == "conversation_full"):
        chat.act("word " * 20)
    assert chat.act("word " * 10) == "ok"


@pytest.mark.parametrize(
    ("name", "error"),
    [("mine", UnknownModelError), ("job-1", NotFoundError), ("job-1@x", InvalidRequestError)],
)
def test_rejects_policy_that_the_service_lacks_immediately(start_service, name, error, connect):
    start_service()
    with pytest.raises(error):
        connect().policy(name)


def test_plays_a_model_folder_of_the_service(start_service):
    service = start_service()
    with tg.Client() as client:
        assert client.policy("/models/mine", max_turn_tokens=7).act("hello") == "ok"
    assert [(r.policy, r.max_tokens) for batch in service.sampled for r in batch] == [("/models/mine", 7)]


@pytest.mark.parametrize("value", [0, -1, True, 2.5, "3"])
def test_limits_the_length_of_answer(start_service, value):
    start_service()
    with tg.Client() as client, pytest.raises(InvalidRequestError) as caught:
        client.policy(max_turn_tokens=value)
    assert caught.value.field == "max_turn_tokens"


@pytest.mark.parametrize(
    ("setting", "value"),
    [("temperature", value) for value in (-1, 1e-4, 11, float("nan"), True, "1")] + [("top_k", True)],
)
def test_rejects_unknown_sampling_immediately(start_service, setting, value, connect):
    start_service()
    with pytest.raises(InvalidRequestError) as caught:
        connect().policy("nano", **{setting: value})
    assert caught.value.field == setting


def test_repeats_answers_by_the_seed_of_episode(start_service, connect):
    service = start_service()
    chat = connect().policy("nano").chat(seed=7)
    chat.act("hello")
    for seed in (7, 8, None, None):
        chat.reset(seed=seed)
        chat.act("hello")
    one, again, *others = (batch[0].seed for batch in service.sampled)
    assert one == again
    assert len({one, *others}) == 4


def test_seats_policy_as_an_opponent(start_service, connect):
    service = start_service(lambda prompt: "b2")
    opponent = connect().policy("nano")
    env = AgainstOpponent(tg.make_game("board/TicTacToe-v0"), opponent=opponent, seat="second")
    boards = [env.reset(seed=2)[0] for _ in range(2)]
    assert boards[0] == boards[1]
    one, again = (batch[0].seed for batch in service.sampled)
    assert one == again


def test_plays_every_seed_once_in_an_evaluation(start_service, connect):
    start_service(count_messages)
    evaluation = connect().policy("nano").evaluate(Countdown, episodes=20, seed=100)
    assert [t.seed for t in evaluation.trajectories] == list(range(100, 120))
    assert evaluation.wins == 20


def job_of(**agents):
    spec = parse_spec(
        {
            "environment": {"id": "board/TicTacToe-v0"},
            "steps": 1,
            "agents": agents,
            "system_prompt": "Play.",
        }
    )
    return JobView(
        job_id="job-1", spec=spec, state=JobState.RUNNING, created_at=0.0, updated_at=0.0, attempt=1
    )


def named(view, agent):
    return Policy.of_job(None, view, version=3, agent=agent)


def test_gives_each_agent_of_game_policy_with_name_and_prompt():
    view = job_of(x=Train(system_prompt="Win."), o=Train())
    assert [(named(view, agent).name, named(view, agent).system_prompt) for agent in "xo"] == [
        ("job-1/x", "Win."),
        ("job-1/o", "Play."),
    ]
    shared = job_of(x=Train(system_prompt="Win."), o=SharedWith(agent="x"))
    assert (named(shared, "o").name, named(shared, "o").system_prompt) == ("job-1/x", "Win.")


def test_samples_seat_as_it_was_trained():
    own = Sampling(temperature=0.5, max_turn_tokens=200)
    view = job_of(x=Train(sampling=own), o=Train())
    as_trained = Decoding(temperature=0.5, max_turn_tokens=200)
    assert [named(view, agent).decoding for agent in "xo"] == [as_trained, Decoding()]
    assert named(job_of(x=Train(sampling=own), o=SharedWith("x")), "o").decoding == as_trained


@pytest.mark.parametrize("agent", ["", "black"])
def test_rejects_untrained_agent_with_those_that_are_trained(agent):
    with pytest.raises(InvalidRequestError) as caught:
        named(job_of(x=Train(), o=Train()), agent)
    assert caught.value.field == "agent"


def test_names_no_agents_in_job_of_one_policy():
    with pytest.raises(InvalidRequestError) as caught:
        named(job_of(), "x")
    assert caught.value.field == "agent"
    assert named(job_of(), "").name == "job-1"
