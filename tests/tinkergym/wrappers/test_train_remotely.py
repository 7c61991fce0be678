import time
import warnings

import gymnasium as gym
import pytest

import tinkergym as tg
from tinkergym.errors import (
    EpisodeProtocolError,
    InvalidEnvironmentError,
    InvalidRequestError,
    JobCancelledError,
)
from tinkergym.schema.events import JobState
from tinkergym.tasks import SequenceTasks

SMALL = tg.GRPO(group_size=2, groups_per_step=2)


class Dice(gym.Env):
    """Shows numbers, not text; pays for naming the die, in two rolls."""

    observation_space = gym.spaces.Discrete(7)
    action_space = gym.spaces.Discrete(7)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.rolls, self.die = 0, int(self.np_random.integers(1, 7))
        return self.die, {}

    def step(self, action):
        reward = float(action == self.die)
        self.rolls += 1
        self.die = int(self.np_random.integers(1, 7))
        return self.die, reward, self.rolls == 2, False, {}


def name_the_die(prompt: str) -> str:
    return prompt.rsplit("The die shows ", maxsplit=1)[-1][0]


@pytest.fixture
def service(start_service):
    return start_service(name_the_die)


@pytest.fixture
def train(train_remotely):
    def train(steps=2, **settings):
        return train_remotely(Dice(), steps=steps, **{"algorithm": SMALL, **settings})

    return train


def play_one(env) -> float:
    die, _ = env.reset()
    total, over = 0.0, False
    while not over:
        action = int(env.policy.act(f"The die shows {die}."))
        die, reward, terminated, truncated, _ = env.step(action)
        total, over = total + reward, terminated or truncated
    return total


def recorded(service, env):
    return [result.trajectory for step in service.jobs.get(env.job.id).history for result in step]


def test_begins_no_episode_after_close(service, train):
    env = train(steps=2)
    env.reset()
    with pytest.warns(UserWarning, match="waits for episodes"):
        env.close()
    assert not env.training
    for call in (env.reset, lambda: env.step(1)):
        with pytest.raises(EpisodeProtocolError):
            call()


def test_trains_in_a_plain_loop_until_steps_are_done(service, train):
    env = train(steps=2)
    returns = []
    while env.training:
        returns.append(play_one(env))
    env.close()
    assert returns == [2.0] * 8
    assert env.job.wait().state is JobState.COMPLETED
    trajectories = recorded(service, env)
    assert [t.episode_return for t in trajectories] == [2.0] * 8
    assert {t.stop_reason for t in trajectories} == {"terminated"}
    # What the policy read and wrote, token for token; the environment itself knows only numbers.
    assert trajectories[0].turns[0].observation.startswith("The die shows")
    assert trajectories[0].turns[0].action in "123456"
    assert sum(trajectories[0].segments[0].loss_mask) == trajectories[0].sampled_tokens > 0


def test_starts_the_episodes_of_a_group_equal(service, train):
    env = train(steps=1)
    firsts = []
    while env.training:
        firsts.append(env.reset()[0])
        env.policy.act("The die shows 1.")
        env.step(1)
        env.policy.act("The die shows 1.")
        env.step(1)
    env.close()
    assert firsts[0] == firsts[1]
    assert firsts[2] == firsts[3]


def test_rejects_scripts_own_seed_unless_batch_is_the_baseline(service, train):
    env = train()
    with pytest.raises(InvalidRequestError) as caught:
        env.reset(seed=7)
    assert caught.value.field == "seed"
    env.job.cancel()
    env = train(algorithm=tg.GRPO(group_size=1, groups_per_step=2, baseline="batch"))
    same = Dice().reset(seed=7)[0]
    assert env.reset(seed=7)[0] == same
    env.job.cancel()


def test_rejects_steps_and_answers_out_of_order(service, train):
    env = train()
    with pytest.raises(EpisodeProtocolError):
        env.policy.act("The die shows 1.")
    env.reset()
    with pytest.raises(EpisodeProtocolError):
        env.step(1)
    env.policy.act("The die shows 1.")
    with pytest.raises(EpisodeProtocolError):
        env.policy.act("The die shows 1.")
    env.step(1)
    with pytest.raises(EpisodeProtocolError):
        env.step(1)
    env.job.cancel()


def test_abandons_and_names_episode_on_reset_in_the_middle(service, train):
    env = train(steps=1)
    env.reset()
    env.policy.act("The die shows 1.")
    while env.training:
        play_one(env)
    env.close()
    reasons = [t.stop_reason for t in recorded(service, env)]
    assert reasons == ["abandoned", "terminated", "terminated", "terminated"]


def test_ends_raising_environments_episode_by_name_and_tells_script(service, train_remotely):
    class Breaking(Dice):
        def step(self, action):
            raise ZeroDivisionError("no such die")

    env = train_remotely(Breaking(), steps=1, algorithm=SMALL)
    for _ in range(4):
        env.reset()
        env.policy.act("The die shows 1.")
        with pytest.raises(ZeroDivisionError):
            env.step(1)
    trajectory = recorded(service, env)[0]
    assert trajectory.stop_reason == "environment_error"
    assert "no such die" in trajectory.error


def test_truncates_at_turn_limit_and_says_so(service, train):
    env = train(steps=1, limits=tg.Limits(max_turns=1))
    env.reset()
    env.policy.act("The die shows 1.")
    _, _, terminated, truncated, info = env.step(1)
    assert (terminated, truncated) == (False, True)
    assert info["tinkergym"]["stop_reason"] == "turn_limit"
    env.job.cancel()


def test_truncates_at_next_step_of_full_context_without_environment(start_service, train):
    service = start_service(name_the_die, context_length=100)
    env = train(steps=1)
    env.reset()
    env.policy.act("The die shows 1.")
    env.step(1)
    assert env.policy.act("The die shows 2. " + "word " * 20) == ""
    _, reward, terminated, truncated, info = env.step(None)
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["tinkergym"]["stop_reason"] == "context_limit"
    assert env.unwrapped.rolls == 1
    assert len(service.jobs.get(env.job.id).results) == 1
    env.job.cancel()


class Slow(Dice):
    def __init__(self, slow):
        self.slow = slow

    def reset(self, **kwargs):
        time.sleep(0.35 * (self.slow == "reset"))
        return super().reset(**kwargs)

    def step(self, action):
        time.sleep(0.35 * (self.slow == "step"))
        return super().step(action)


@pytest.mark.parametrize("slow", ["reset", "step"])
def test_ends_episode_by_name_when_environment_took_too_long(service, slow, train_remotely):
    env = train_remotely(Slow(slow), steps=1, algorithm=SMALL, limits=tg.Limits(step_timeout_seconds=0.3))
    env.reset()
    env.policy.act("The die shows 1.")
    with pytest.warns(UserWarning, match=f"environment_timeout: {slow} returned after"):
        _, _, terminated, truncated, info = env.step(1)
    assert (terminated, truncated) == (False, True)
    assert info["tinkergym"]["stop_reason"] == "environment_timeout"
    assert not service.jobs.get(env.job.id).results[0].trajectory.completed
    env.job.cancel()


def test_keeps_earnings_of_episode_whose_time_ran_out(service, train):
    env = train(steps=1, limits=tg.Limits(episode_timeout_seconds=2.0))
    die, _ = env.reset()
    env.step(int(env.policy.act(f"The die shows {die}.")))
    time.sleep(2.0)
    assert env.policy.act("The die shows 2.") == ""
    *_, info = env.step(None)
    assert info["tinkergym"]["stop_reason"] == "episode_timeout"
    assert service.jobs.get(env.job.id).results[0].trajectory.episode_return == 1.0
    env.job.cancel()


def test_tells_of_cancelled_job_at_the_next_episode(service, train):
    env = train(steps=50)
    play_one(env)
    env.job.cancel()
    with pytest.raises(JobCancelledError):
        env.training  # noqa: B018 - asking is what raises


def test_plays_on_with_trained_policy_and_warns_once(service, train):
    env = train(steps=1)
    for _ in range(4):
        play_one(env)
    with pytest.warns(UserWarning, match="without recording"):
        assert play_one(env) == 2.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert play_one(env) == 2.0
    assert len(recorded(service, env)) == 4


def test_tells_script_that_leaves_early_how_to_go_on(service, train, train_remotely):
    first = train(steps=1)
    play_one(first)
    with pytest.warns(UserWarning, match="waits for episodes; continue with TrainRemotely"):
        first.close()
    service.jobs.take_back(first.job.id)
    second = train_remotely(Dice(), job_id=first.job.id)
    while second.training:
        play_one(second)
    second.close()
    assert second.job.wait().step == 1


def test_costs_nothing_when_service_is_away_for_a_moment(service, train):
    env = train(steps=1)
    env.reset()
    for call in ("sample", "submit", "lease"):
        service.break_next(call, status=503)
    while env.training:
        play_one(env)
    env.close()
    assert len(recorded(service, env)) == 4


def test_names_environment_in_job_as_its_creator_did(service, train, train_remotely):
    tg.register("here/Dice-v0", Dice)
    env = train_remotely(tg.make("here/Dice-v0"), steps=1, algorithm=SMALL)
    assert env.job.spec.environment.id == "here/Dice-v0"
    assert train().job.spec.environment.id == "local/Dice-v0"
    env.job.cancel()


def test_begins_a_job_of_hundred_steps_by_default(service, train_remotely):
    env = train_remotely(Dice(), algorithm=SMALL)
    assert env.job.spec.steps == 100
    env.job.cancel()


def test_starts_nothing_on_wrong_settings(service, train):
    with pytest.raises(InvalidRequestError) as caught:
        train(steps=0)
    assert caught.value.field == "steps"
    with pytest.raises(InvalidRequestError) as caught:
        train(sede=1)
    assert caught.value.field == "sede"
    with pytest.raises(InvalidRequestError) as caught:
        train(rollout="client")
    assert caught.value.field == "rollout"
    with pytest.raises(InvalidRequestError) as caught:
        train(job_id="job-1")
    assert caught.value.field == "algorithm"
    assert "POST /v1/jobs" not in service.calls


def test_rejects_foreign_adapter_in_place_of_the_usual_one(service, train):
    with pytest.raises(InvalidRequestError) as caught:
        train(adapter={})
    assert caught.value.field == "adapter"


def test_raises_at_the_next_call_after_a_job_failed(start_service, train_remotely):
    start_service(name_the_die, context_length=10**6)  # The news is there long before it is full.

    class Endless(Dice):
        def step(self, action):
            return self.die, 0.0, False, False, {}

    env = train_remotely(
        Endless(), steps=1, algorithm=SMALL, client_timeout_seconds=0.2, limits=tg.Limits(max_turns=10**6)
    )
    env.reset()
    env.job.cancel()
    with pytest.raises(JobCancelledError):
        while True:
            env.policy.act("The die shows 1.")
            env.step(1)


class Riddle(tg.SingleTurnEnv):
    def __init__(self, rows):
        self.tasks = SequenceTasks(rows)

    def ask(self, options):
        return "?"

    def score(self, answer):
        return 0.0


def test_continues_only_with_the_tasks_of_the_job(service, train_remotely):
    first = train_remotely(Riddle([{"a": 1}]), steps=2, algorithm=SMALL)
    train_remotely(Riddle([{"a": 1}]), job_id=first.job.id)
    with pytest.raises(InvalidEnvironmentError) as refused:
        train_remotely(Riddle([{"a": 2}]), job_id=first.job.id)
    assert refused.value.code == "data_changed"
