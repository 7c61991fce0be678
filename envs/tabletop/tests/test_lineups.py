"""Exploitability of a job's policies and of what a command line names. The service behind them is a stub."""

import json
from types import SimpleNamespace

import pytest
from tinkergym_tabletop.__main__ import app
from tinkergym_tabletop.lineups import exploitability_of_job, lineup_named, version_lineups
from typer.testing import CliRunner

from tests.tinkergym.remote.test_game_players import NIM, StubApi, job_of
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import InvalidRequestError
from tinkergym.registration.games import make_game
from tinkergym.remote.policy import Policy
from tinkergym.schema.fixed_players import Scripted
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.seats import Train
from tinkergym.testing.bundles import byte_bundle
from tinkergym.testing.samplers import ScriptedSampler

KUHN = "tabletop/KuhnPoker-v0"


def command(*arguments):
    return CliRunner().invoke(app, ["exploitability", *map(str, arguments)])


def test_measures_exploitability_of_random_play_without_service(tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "kuhn.png"
    run = command(KUHN, "random", "--json", "--png", picture)
    assert run.exit_code == 0
    (found,) = json.loads(run.stdout)["measured"]
    assert found["exploitability"] == pytest.approx(11 / 24)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "0.458" in command(KUHN, "random").output


def test_refuses_an_empty_list_of_policies():
    run = command(KUHN, ",", "--json")
    assert (run.exit_code, json.loads(run.stdout)["error"]["field"]) == (2, "POLICIES")


def test_plays_all_seats_together_in_versions_that_each_policy_has(monkeypatch):
    api = StubApi(job_of(NIM, player_0=Train(), player_1=Train()))
    kept = {"player_0": [3, 4], "player_1": [4, 6]}
    found = api.find_policy
    monkeypatch.setattr(
        api, "find_policy", lambda name: SimpleNamespace(**{**vars(found(name)), "kept": kept[name[6:]]})
    )
    lineups = version_lineups(api, api.view, list(kept))
    assert [one.step for one in lineups] == [0, 4, 9]
    assert {agent: one.name for agent, one in lineups[1].policies.items()} == {
        agent: f"job-1/{agent}" for agent in kept
    }


def test_rejects_policy_of_one_seat_as_a_lineup():
    api, game = StubApi(job_of(NIM, player_0=Train(), player_1=Train()), [4]), make_game("games/Nim-v0")
    assert lineup_named(api, "job-1@4", game).policies.keys() == {"player_0", "player_1"}
    with pytest.raises(InvalidRequestError) as refused:
        lineup_named(api, "job-1/player_0@4", game)
    assert refused.value.field == "players"


def test_measures_exploitability_of_a_jobs_policies(monkeypatch):
    renderer = Renderer.from_bundle(byte_bundle())
    monkeypatch.setattr(Policy, "sampler", lambda policy: ScriptedSampler(renderer, lambda prompt: "x"))
    view = job_of(EnvironmentRef(id="tabletop/KuhnPoker-v0"), first=Train(), second=Train())
    client = SimpleNamespace(api=StubApi(view, [3]))
    (one,) = exploitability_of_job(client, "job-1", [3]).measured
    # To the stub every action is equally probable.
    assert one.found.exploitability == pytest.approx(11 / 24)
    curve = exploitability_of_job(client, "job-1")
    assert [(one.name, one.step) for one in curve.measured] == [(f"job-1@{n}", n) for n in (0, 3, 9)]
    assert curve.averages == pytest.approx(dict.fromkeys((0, 3, 9), 11 / 24))


def test_gives_no_exploitability_to_job_without_policy_for_a_seat():
    view = job_of(EnvironmentRef(id="tabletop/KuhnPoker-v0"), first=Train(), second=Scripted(name="honest"))
    with pytest.raises(InvalidRequestError) as refused:
        exploitability_of_job(SimpleNamespace(api=StubApi(view, [3])), "job-1", [3])
    assert refused.value.field == "agents"
