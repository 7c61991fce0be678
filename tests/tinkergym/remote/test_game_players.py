"""Which players of a game a reference and a job name. The service behind them is a stub."""

from types import SimpleNamespace

import pytest

from tinkergym.errors import InvalidRequestError, NotFoundError
from tinkergym.registration.games import make_game
from tinkergym.remote.game_players import (
    find_player,
    find_seats,
    game_of,
    version_players,
    versions_named,
)
from tinkergym.schema.events import JobState
from tinkergym.schema.fixed_players import Scripted
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import SharedWith, Train
from tinkergym.schema.jobs.view import JobView
from tinkergym.testing.bundles import byte_bundle


def job_of(environment, newest=9, **agents):
    spec = RLSpec(environment=environment, agents=agents, steps=10)
    times = {"created_at": 0.0, "updated_at": 0.0, "attempt": 1}
    return JobView(job_id="job-1", spec=spec, state=JobState.RUNNING, policy_version=newest, **times)


class StubApi:
    """Knows one job and what is kept of it."""

    def __init__(self, view, kept=()):
        self.view, self.kept = view, list(kept)
        self.found = []

    def job(self, job_id):
        return self.view

    def renderer(self, model, chat_template=None):
        return byte_bundle()

    def find_policy(self, reference):
        self.found.append(reference)
        agent = reference.partition("@")[0].partition("/")[2]
        return SimpleNamespace(job_id="job-1", agent=agent, version=None, kept=self.kept)


NIM = EnvironmentRef(id="games/Nim-v0")


def test_chooses_first_newest_and_some_versions_between():
    view = job_of(NIM, player_0=Train(), player_1=SharedWith(agent="player_0"))
    players = version_players(StubApi(view, range(1, 10)), view, most=4)
    assert [one.step for one in players] == [0, 3, 6, 9]
    assert {one.seats for one in players} == {("player_0", "player_1")}
    assert players[-1].name == "job-1/player_0@9"


def test_means_all_policies_by_job_and_one_by_its_name():
    view = job_of(NIM, player_0=Train(), player_1=Train())
    api = StubApi(view)
    named = {ref: [one.name for one in versions_named(api, ref)] for ref in ("job-1", "job-1/player_1")}
    own = ["job-1/player_1@0", "job-1/player_1@9"]
    assert named == {"job-1": ["job-1/player_0@0", "job-1/player_0@9", *own], "job-1/player_1": own}


def test_resolves_reference_to_kept_version_or_the_newest():
    view = job_of(NIM, player_0=Train(), player_1=Train())
    api, game = StubApi(view, [4]), make_game("games/Nim-v0")
    named = [find_player(api, f"job-1/player_1{at}", game).name for at in ("@4", "@0", "")]
    assert named == ["job-1/player_1@4", "job-1/player_1@0", "job-1/player_1@9"]
    with pytest.raises(NotFoundError) as refused:
        find_player(api, "job-1/player_1@5", game)
    assert refused.value.field == "versions"
    assert find_player(api, "perfect", game).plays == "perfect"


def test_plays_each_seat_of_a_job_with_its_policy():
    view = job_of(NIM, player_0=Train(), player_1=Train())
    api, game = StubApi(view, [4]), make_game("games/Nim-v0")
    found = find_seats(api, "job-1@4", game, game.possible_agents)
    assert {agent: one.name for agent, one in found.items()} == {
        "player_0": "job-1/player_0@4",
        "player_1": "job-1/player_1@4",
    }
    shared = StubApi(job_of(NIM, player_0=Train(), player_1=SharedWith(agent="player_0")), [4])
    one, other = find_seats(shared, "job-1@4", game, game.possible_agents).values()
    assert (one.name, one is other) == ("job-1/player_0@4", True)
    assert shared.found == ["job-1/player_0"]
    one_seat = StubApi(job_of(NIM, player_0=Train(), player_1=Scripted(name="random")), [4])
    with pytest.raises(InvalidRequestError) as refused:
        find_seats(one_seat, "job-1@4", game, game.possible_agents)
    assert refused.value.field == "players"


@pytest.mark.parametrize("agents", [{}, {"player_0": Train(), "player_1": Train()}])
def test_plays_all_seats_at_the_temperature_asked_for(agents):
    api, game = StubApi(job_of(NIM, **agents), [4]), make_game("games/Nim-v0")
    found = find_seats(api, "job-1@4", game, game.possible_agents, temperature=0.25)
    assert [one.temperature for one in found.values()] == [0.25, 0.25]


class TrainingApi(StubApi):
    """Its job has trained one more step whenever it is asked for."""

    asked = 0

    def job(self, job_id):
        self.asked += 1
        return self.view.model_copy(update={"policy_version": self.view.policy_version + self.asked})


@pytest.mark.parametrize("agents", [{}, {"player_0": Train(), "player_1": Train()}])
def test_plays_same_version_in_all_seats_of_a_running_job(agents):
    api, game = TrainingApi(job_of(NIM, **agents)), make_game("games/Nim-v0")
    found = find_seats(api, "job-1", game, game.possible_agents)
    assert (api.asked, {one.step for one in found.values()}) == (1, {10})


def test_compares_single_seat_job_against_opponent_in_its_game():
    vs = EnvironmentRef(id="games/NimVs-v0", kwargs={"opponent": "perfect", "on_illegal": "random"})
    found = game_of(job_of(vs))
    assert (found.id, found.kwargs) == ("games/Nim-v0", {"on_illegal": "random"})
    with pytest.raises(InvalidRequestError) as refused:
        game_of(job_of(EnvironmentRef(id="bandit/Bandit-v0")))
    assert refused.value.field == "game"
