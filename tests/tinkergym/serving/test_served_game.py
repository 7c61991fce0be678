"""A game with all its seats behind an environment server, against a real server on a real socket."""

from dataclasses import replace

import pytest

import tinkergym as tg
from tests.environment_server import TOKEN, environment_server
from tinkergym.agent.coordinator import Position
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import InvalidRequestError, RemoteAnswerError
from tinkergym.rollout.environment_host import end_episode
from tinkergym.rollout.game_table import PLAYERS, GameTable, seated
from tinkergym.rollout.play_list import play
from tinkergym.schema.episodes import TablePlayer
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.serving.served_game import RemoteTable
from tinkergym.testing.bundles import byte_bundle
from tinkergym.testing.samplers import ScriptedSampler

GAME = "games/Nim-v0"


def game(table, seed, options=None):
    positions = [table.reset(seed=seed, options=options)]
    while positions[-1].turn is not None:
        positions.append(table.step("1"))
    return positions


@pytest.mark.parametrize(
    "processes",
    [
        False,
        pytest.param(
            True, marks=pytest.mark.full("plays as in this process; `test_remote_env` has processes, too")
        ),
    ],
)
def test_serves_the_game_that_is_here(processes):
    with environment_server(GAME, processes=processes) as url:
        env = tg.make("tinkergym/Remote-v0", url=url, token=TOKEN)
        there, here = seated(env), GameTable(tg.make_game(GAME))
        assert isinstance(there, RemoteTable)
        assert there.agents == here.agents
        for seed in range(3):
            assert game(there, seed) == game(here, seed)
        there.close()


def test_plays_scripts_in_seats_where_the_game_is():
    options = {PLAYERS: {"player_0": (TablePlayer(name="perfect"), 5)}}
    with environment_server(GAME) as url:
        there = seated(tg.make("tinkergym/Remote-v0", url=url, token=TOKEN))
        positions = game(there, 2, options)
        assert positions == game(GameTable(tg.make_game(GAME)), 2, options)
        assert {position.agents for position in positions} == {("player_1",)}
        with pytest.raises(InvalidRequestError):
            there.unwrapped.check_opponent("prefect")
        there.close()


def test_frees_servers_place_of_game_that_its_loop_ended():
    with environment_server(GAME, capacity=1) as url:
        first, second = (
            seated(tg.make("tinkergym/Remote-v0", url=url, token=TOKEN, hold="episode")) for _ in range(2)
        )
        first.reset(seed=0)
        end_episode(first)
        assert second.reset(seed=0).turn is not None
        second.close()
        first.close()


def test_rejects_environment_with_one_agent_as_game():
    with environment_server("games/NimVs-v0") as url:
        env = tg.make("tinkergym/Remote-v0", url=url, token=TOKEN)
        assert seated(env) is env
        env.close()


class Liar:
    """An environment server's client that was told nonsense."""

    def __init__(self, info, agents=("a", "b")):
        self.metadata, self.info = {"agents": list(agents)}, info

    def reset(self, **_):
        return "", self.info


@pytest.mark.parametrize(
    "position",
    [
        None,
        {},
        {"agents": [1], "ended": [], "turn": None, "owed": {}},
        {"agents": ["a"], "ended": 3, "turn": None, "owed": {}},
        {"agents": ["a"], "ended": [], "turn": {"agent": "a"}, "owed": {}},
    ],
)
def test_rejects_position_that_means_nothing(position):
    with pytest.raises(RemoteAnswerError):
        RemoteTable(Liar({"position": position})).reset(seed=0)


def test_reads_sound_position():
    info = {"position": {"agents": ["a"], "ended": [], "turn": None, "owed": {"a": 1.0}}}
    assert RemoteTable(Liar(info)).reset(seed=0) == Position(
        agents=("a",), ended=(), turn=None, owed={"a": 1.0}
    )


def test_plays_served_game_with_several_seats():
    renderer = Renderer.from_bundle(byte_bundle())
    first = EpisodePlan(
        episode_id="e", seed=1, policy="p", agent="player_0", environment=EnvironmentRef(id="served")
    )
    plan = replace(first, others=(replace(first, agent="player_1", seat=1),))
    with environment_server(GAME) as url:
        (result,) = play(
            [plan],
            sampler=ScriptedSampler(renderer, lambda _prompt: "1"),
            renderer=renderer,
            make_env=lambda _: tg.make("tinkergym/Remote-v0", url=url, token=TOKEN),
        )
    assert [record.agent for record in result.trajectories] == ["player_0", "player_1"]
    assert all(record.stop_reason == "terminated" for record in result.trajectories)
    assert sum(record.episode_return for record in result.trajectories) == 0.0
