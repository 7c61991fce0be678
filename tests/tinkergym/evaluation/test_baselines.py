import gymnasium as gym
import pytest

import tinkergym as tg
from tinkergym.errors import InvalidRequestError, InvalidRewardError
from tinkergym.evaluation.baselines import GoldPolicy, LegalPolicy, RandomTextPolicy, play_episode


class Guess(tg.TextEnv):
    """Name the colour that is shown; a second wrong one ends it."""

    def start(self, options):
        self.colour = ["red", "green", "blue"][options.get("task_index", int(self.np_random.integers(3)))]
        self.wrong = 0
        return f"It is {self.colour}."

    def reply(self, action):
        if action == self.colour:
            return "Right.", 1.0, True, {"metrics": {"wrong": float(self.wrong)}}
        self.wrong += 1
        return "No.", 0.0, self.wrong == 2

    def legal_actions(self):
        return ["red", "green", "blue"]

    def gold_action(self):
        return self.colour


def test_earns_by_gold_policy_what_there_is_to_earn():
    env = Guess()
    for seed in range(6):
        trajectory = play_episode(env, GoldPolicy(env), seed=seed)
        assert (trajectory.episode_return, trajectory.stop_reason) == (1.0, "terminated")
        assert trajectory.transcript[-1] == ("user", "Right.")
        assert trajectory.turns[-1].metrics == {"wrong": 0.0}


def test_tries_all_legal_actions_repeatably_by_seed():
    env = Guess()
    played = [play_episode(env, LegalPolicy(env), seed=0, policy_seed=i) for i in range(30)]
    assert {t.turns[0].action for t in played} == {"red", "green", "blue"}
    assert played[3] == play_episode(env, LegalPolicy(env), seed=0, policy_seed=3)


def test_plays_random_answers_mostly_from_observation_repeatable_by_seed():
    policy = RandomTextPolicy(5)
    answers = [policy.act("one two three") for _ in range(200)]
    share = sum(answer in ("one", "two", "three") for answer in answers) / len(answers)
    assert 0.7 < share < 0.9
    policy.reset(5)
    assert [policy.act("one two three") for _ in range(200)] == answers


def test_answers_conversations_at_random_too():
    assert RandomTextPolicy(0).act([{"role": "user", "content": "hello"}])
    assert RandomTextPolicy(0).act("")


def test_names_task_by_its_index():
    env = Guess()
    trajectory = play_episode(env, GoldPolicy(env), seed=0, task_index=2)
    assert (trajectory.task_index, trajectory.turns[0].action) == (2, "blue")


@pytest.mark.parametrize("policy", [GoldPolicy, LegalPolicy])
def test_rejects_environment_that_does_not_offer_it(policy):
    class Plain(tg.SingleTurnEnv):
        def ask(self, options):
            return "?"

    with pytest.raises(InvalidRequestError) as caught:
        policy(Plain())
    assert caught.value.field == "policy"


def test_rejects_unknown_action_when_it_is_asked_for():
    class Unsolved(Guess):
        def gold_action(self):
            return None

    with pytest.raises(InvalidRequestError) as caught:
        play_episode(Unsolved(), GoldPolicy(Unsolved()), seed=0)
    assert caught.value.field == "policy"


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (RuntimeError("out of order"), "environment_error"),
        (InvalidRewardError("the judge is away"), "invalid_reward"),
        (float("nan"), "invalid_reward"),
    ],
)
def test_counts_failure_of_the_environment_as_an_outcome(outcome, reason):
    class Broken(Guess):
        def reply(self, action):
            if isinstance(outcome, Exception):
                raise outcome
            return "", outcome, True

    trajectory = play_episode(Broken(), RandomTextPolicy(), seed=0)
    assert trajectory.stop_reason == reason
    assert trajectory.error
    assert not trajectory.completed


def test_cuts_off_episode_without_end():
    class Endless(Guess):
        def reply(self, action):
            return "on", 0.0, False

    trajectory = play_episode(Endless(), RandomTextPolicy(), seed=0, most_turns=7)
    assert (len(trajectory.turns), trajectory.stop_reason) == (7, "turn_limit")


@pytest.mark.parametrize(
    ("terminated", "truncated", "reason"),
    [(True, False, "terminated"), (False, True, "truncated"), (True, True, "terminated")],
)
def test_takes_an_episode_with_both_flags_as_terminated(terminated, truncated, reason):
    class Ends(gym.Env):
        observation_space = action_space = gym.spaces.Text(10)

        def reset(self, *, seed=None, options=None):
            return "go", {}

        def step(self, action):
            return "end", 1.0, terminated, truncated, {}

    found = play_episode(Ends(), RandomTextPolicy(), seed=0)
    assert (found.stop_reason, found.terminated, found.truncated) == (reason, terminated, not terminated)


def test_gives_a_policy_its_own_seed():
    class Seeded(RandomTextPolicy):
        def reset(self, seed):
            self.seed = seed
            super().reset(seed)

    policy = Seeded()
    play_episode(Guess(), policy, seed=3)
    assert policy.seed == 3
    found = play_episode(Guess(), policy, seed=3, policy_seed=8)
    assert (policy.seed, found.seed) == (8, 3)
