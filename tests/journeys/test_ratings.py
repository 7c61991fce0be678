"""Versions of policies that learned a game are compared, rated, and measured against a best response."""

import json

import pytest
from typer.testing import CliRunner

import tinkergym as tg
from tinkergym.cli.main import app
from tinkergym.errors import InvalidRequestError, NotFoundError

pytestmark = pytest.mark.service

GAME = "board/TicTacToe-v0"


@pytest.fixture(scope="module")
def job_id(service):
    with tg.Client() as client:
        job = client.train(
            GAME,
            steps=2,
            checkpoint_every=1,
            agents={"x": tg.Train(), "o": tg.Train()},
            algorithm=tg.GRPO(group_size=2, groups_per_step=2),
            sampling=tg.Sampling(max_turn_tokens=4),
            env_kwargs={"on_illegal": "random"},
        )
        job.wait()
    return job.id


def test_rates_versions_of_two_seats_and_random_on_same_seeds(client, job_id):
    found = client.job(job_id).crossplay([0, 2], pairs=3)
    x0, x2, o0, o2 = (f"{job_id}/{agent}@{version}" for agent in "xo" for version in (0, 2))
    assert found.names == [x0, x2, o0, o2, "random"]
    assert found.cell(x0, x2) is None  # both play x only
    assert found.cell(x2, o2).games == 3
    assert found.cell(x2, "random").games == 3
    assert not found.failed
    ratings = client.job(job_id).ratings(versions=[0, 2], pairs=2)
    assert {one.name: one.step for one in ratings.ratings}[o2] == 2


def test_rejects_unkept_version_and_player_that_does_not_exist(client, job_id):
    job = client.job(job_id)
    with pytest.raises(NotFoundError) as refused:
        job.crossplay([7], pairs=1)
    assert refused.value.field == "versions"
    with pytest.raises(InvalidRequestError) as unknown:
        job.crossplay([0], against=["perfct"], pairs=1)
    assert unknown.value.field == "players"


def test_takes_players_by_reference_on_command_line(service, job_id):
    players = f"random,heuristic,{job_id}/x@2,nano"
    run = CliRunner().invoke(
        app,
        ["eval", GAME, "--crossplay", players, "--pairs", "2", "--json", "--env-set", "on_illegal=random"],
    )
    assert run.exit_code == 0, run.output
    found = json.loads(run.stdout)
    names = [player["name"] for player in found["crossplay"]["players"]]
    assert names == ["random", "heuristic", f"{job_id}/x@2", "nano"]
    assert len(found["ratings"]["ratings"]) == 4


def test_seats_a_person_against_a_version(service, job_id):
    arguments = ["play", GAME, "--seat", "o", "--policy", f"{job_id}/x@2", "--json"]
    typed = "x\n" * 20
    run = CliRunner().invoke(app, [*arguments, "--env-set", "on_illegal=random"], input=typed)
    assert run.exit_code == 0, run.output
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert lines[-1]["event"] == "end"
    assert sum(lines[-1]["returns"].values()) == 0.0
    wrong = CliRunner().invoke(app, ["play", GAME, "--seat", "x", "--policy", f"{job_id}/x@2"])
    assert wrong.exit_code != 0


def test_computes_a_models_exploitability_exactly(client):
    from tinkergym_tabletop.exploitability import GameTree
    from tinkergym_tabletop.policy_strategy import policy_strategy

    tree = GameTree(tg.make_game("tabletop/KuhnPoker-v0"))
    strategy = policy_strategy(client.policy("nano"), tree.situations)
    found = tree.exploitability(strategy)
    assert 0 < found.exploitability < 2
    assert 0 < strategy.mean_legal_share < 1
