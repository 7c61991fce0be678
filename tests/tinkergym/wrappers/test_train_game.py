"""A script's own `agent_iter` loop, trained remotely."""

from __future__ import annotations

import pytest

import tinkergym as tg
from tests.tinkergym.rollout.random_games import RandomGame
from tinkergym.errors import EpisodeProtocolError, InvalidRequestError
from tinkergym.schema.events import JobState

SMALL = tg.GRPO(group_size=2, groups_per_step=2)
TWO = {"x": tg.Train(), "o": tg.Train()}


class Line(tg.TextGame):
    """Each says a number; after two numbers each, the larger sum takes it all."""

    agents = ("x", "o")

    def begin(self, rng):
        self.said = [0, 0]
        self.turns = 0

    def observe(self, player):
        return f"turn {self.turns}"

    def legal(self, player):
        return list("0123456789")

    def play(self, player, move):
        self.said[player] += int(move)
        self.turns += 1
        if self.turns < 4:
            return None
        return [1.0, -1.0] if self.said[0] > self.said[1] else [-1.0, 1.0]


def game(**settings):
    from tinkergym.games.game_env import GameEnv

    return GameEnv(Line(), **settings)


@pytest.fixture
def service(start_service):
    # Who reads "turn 0" or "turn 2" is x, and says more than o.
    return start_service(lambda prompt: "9" if prompt.rsplit("turn ", 1)[-1][0] in "02" else "1")


@pytest.fixture
def train(train_remotely):
    def train(env=None, **settings):
        known = {"agents": TWO, "algorithm": SMALL, "steps": 2, **settings}
        return train_remotely(game() if env is None else env, **known)

    return train


def play_one(env):
    """Play as PettingZoo's documentation does."""
    env.reset()
    acted = []
    for agent in env.agent_iter():
        observation, _, terminated, truncated, _ = env.last()
        if terminated or truncated:
            action = None
        else:
            action = env.act(agent, f"You are asked: {observation['text']}")
            acted.append((agent, action))
        env.step(action)
    return acted


def recorded(service, env):
    return [result for step in service.jobs.get(env.job.id).history for result in step]


def test_trains_every_seat_in_loop_until_steps_are_done(service, train):
    env = train()
    games = []
    while env.training:
        games.append(play_one(env))
    env.close()
    assert games == [[("x", "9"), ("o", "1")] * 2] * 8
    assert env.job.wait().state is JobState.COMPLETED
    for result in recorded(service, env):
        records = {one.agent: one for one in result.trajectories}
        assert {agent: one.episode_return for agent, one in records.items()} == {"x": 1.0, "o": -1.0}
        assert {one.stop_reason for one in records.values()} == {"terminated"}
        assert [turn.action for turn in records["o"].turns] == ["1", "1"]
        assert records["x"].turns[0].observation.startswith("You are asked")
    assert env.stop_reason == "terminated"


def test_seats_games_own_player_without_recording_it(service, train):
    env = train(agents={"x": tg.Train(), "o": tg.opponents.Scripted("random")}, steps=1)
    while env.training:
        assert [agent for agent, _ in play_one(env)] == ["x", "o", "x", "o"]
    env.close()
    assert {one.agent for result in recorded(service, env) for one in result.trajectories} == {"x"}


@pytest.mark.parametrize("seed", range(4))
def test_pays_seats_that_join_late_or_leave_early(start_service, seed, train):
    service = start_service(lambda prompt: "a")
    game, accounts = RandomGame(3 + seed % 2, leave=0.05 * seed), []
    agents = {agent: tg.Train() for agent in game.possible_agents}
    env = train(game, agents=agents, steps=1)
    while env.training:
        play_one(env)
        accounts.append(game.account)
    env.close()
    assert len(accounts) == 4
    for account, result in zip(accounts, recorded(service, env), strict=True):
        paid = {
            record.agent: sum(turn.reward for turn in record.turns) + record.early_reward
            for record in result.trajectories
        }
        assert paid == account


def test_ends_loop_at_a_limit_of_job_and_names_it(service, train):
    env = train(limits=tg.Limits(max_turns=1), steps=1)
    with pytest.warns(UserWarning, match="waits for episodes"):
        assert play_one(env) == [("x", "9"), ("o", "1"), ("x", "")]
        assert env.stop_reason == "turn_limit"
        env.close()


def test_rejects_calls_out_of_order(service, train):
    env = train()
    with pytest.raises(EpisodeProtocolError):
        env.act("x", "go")
    env.reset()
    with pytest.raises(EpisodeProtocolError):
        env.act("o", "go")
    with pytest.raises(EpisodeProtocolError):
        env.step("9")
    env.act("x", "turn 0")
    with pytest.raises(EpisodeProtocolError):
        env.act("x", "turn 0")
    with pytest.raises(InvalidRequestError):
        env.reset(seed=3)
    with pytest.warns(UserWarning, match="abandoned"):
        env.reset()


def test_ends_game_for_all_when_it_raises_and_tells_script(service, train):
    class Breaks(Line):
        def play(self, player, move):
            raise RuntimeError("fell off the table")

    from tinkergym.games.game_env import GameEnv

    env = train(GameEnv(Breaks()))
    env.reset()
    with pytest.warns(UserWarning, match="environment_error"), pytest.raises(RuntimeError):
        env.step(env.act("x", "turn 0"))
    (result,) = service.jobs.get(env.job.id).results
    assert {one.agent: str(one.stop_reason) for one in result.trajectories} == {
        "x": "environment_error",
        "o": "seat_failed",
    }


@pytest.mark.parametrize("agents", [{}, {"x": tg.Train()}, {**TWO, "z": tg.Train()}])
def test_starts_nothing_for_seats_that_are_not_the_games(service, agents, train):
    with pytest.raises(InvalidRequestError) as caught:
        train(agents=agents)
    assert caught.value.field.partition(".")[0] == "agents"
    assert service.jobs.newest_first() == []


def test_resumes_game_that_was_left_early(service, train, train_remotely):
    env = train()
    play_one(env)
    with pytest.warns(UserWarning, match="job_id"):
        env.close()
    service.jobs.take_back(env.job.id)
    again = train_remotely(game(), job_id=env.job.id)
    while again.training:
        play_one(again)
    again.close()
    assert again.job.wait().state is JobState.COMPLETED
