"""Stored episodes are continued from a turn: in the service, in this process, by hand, and in games."""

import json

import pytest
from typer.testing import CliRunner

import tinkergym as tg
from tinkergym.cli.main import app
from tinkergym.errors import (
    InvalidRequestError,
    NotFoundError,
    NotReplayableError,
    UnknownEnvironmentError,
)
from tinkergym.schema.evaluation import BranchRequest
from tinkergym.trajectory.trajectory import StopReason

pytestmark = pytest.mark.service

SHORT = {
    "steps": 1,
    "algorithm": tg.GRPO(group_size=2, groups_per_step=2),
    "sampling": tg.Sampling(max_turn_tokens=4),
    "env_kwargs": {"on_illegal": "random"},
}


class Count(tg.TextEnv):
    """Three turns that show what the seed draws, or what nothing repeats."""

    drifts = False
    made = 0

    def start(self, options):
        self.left = 3
        Count.made += 1
        return f"{self.np_random.integers(1000)}"

    def reply(self, action):
        self.left -= 1
        shown = f"{self.np_random.integers(1000)}{Count.made if Count.drifts else ''}"
        return shown, float(len(action)), self.left == 0


PLAYED = {
    "alone": {"env": "board/TicTacToeVs-v0"},
    "game": {"env": "board/TicTacToe-v0", "self_play": True},
    "at_once": {"env": "tabletop/PrisonersDilemma-v0", "self_play": True},
}


class Trained(dict):
    """Jobs that have ended, each trained when a test asks for it first."""

    def __init__(self, client):
        self.client = client

    def __missing__(self, kind):
        self[kind] = self.client.train(**SHORT | PLAYED[kind])
        self[kind].wait(progress=False)
        return self[kind]


@pytest.fixture(scope="module")
def jobs(service):
    with tg.Client() as client:
        yield Trained(client)


def prefix(record, turn):
    """The tokens before a turn's answer, by segment."""
    return record.segments[record.turns[turn - 1].segment].token_ids[: record.turns[turn - 1].start]


def test_continues_an_episode_with_the_same_tokens(jobs):
    job = jobs["alone"]
    episode = max(job.episodes(), key=lambda one: len(one.trajectory.turns))
    how = {"n": 3, "policy": f"{job.id}@0"}
    there, here = job.branch(episode, 2, **how), job.branch(episode, 2, env="board/TicTacToeVs-v0", **how)
    for found in (there, here):
        assert found.original == episode.trajectory
        for one in found.trajectories:
            assert one.completed
            assert prefix(one, 2) == prefix(episode.trajectory, 2)
            assert one.turns[0] == episode.trajectory.turns[0]
    tokens = [[one.segments[0].token_ids for one in each.trajectories] for each in (there, here)]
    assert tokens[0] == tokens[1]
    assert len(set(map(tuple, tokens[0]))) == 3


@pytest.mark.full("a process of the service plays, which takes seconds to start")
def test_continues_one_seat_of_a_game(jobs):
    job = jobs["game"]
    record = job.stored_episode(f"{job.id}:1:0")
    with pytest.raises(InvalidRequestError) as refused:
        job.branch(f"{job.id}:1:0", 2)
    assert refused.value.field == "agent"
    found = job.branch(f"{job.id}:1:0", 2, agent="o", n=2, policy="nano")
    seats = {one.agent: one for one in record.trajectories}
    for own, others in zip(found.trajectories, found.others, strict=True):
        assert (own.agent, [one.agent for one in others]) == ("o", ["x"])
        assert prefix(own, 2) == prefix(seats["o"], 2)
        assert prefix(others[0], 2) == prefix(seats["x"], 2)


@pytest.mark.parametrize(
    "kind", ["game", pytest.param("at_once", marks=pytest.mark.full("a second kind of game"))]
)
def test_shows_each_seat_what_follows_its_own_answer(jobs, kind):
    job = jobs[kind]
    record = job.stored_episode(f"{job.id}:1:0")
    for number, seat in enumerate(record.trajectories):
        how = {"agent": seat.agent, "env": PLAYED[kind]["env"]}
        recorded = record.trajectories[1 - number]
        for turn in (1, 2):
            found = job.branch(record.episode_id, turn, n=0, actions=["?"], **how)
            (one,), ((other,),) = found.trajectories, found.others
            assert (one.agent, len(one.turns)) == (seat.agent, turn)
            assert one.turns[: turn - 1] == seat.turns[: turn - 1]
            assert one.stop_reason in (StopReason.TURN_LIMIT, StopReason.TERMINATED)
            assert (one.error, bool(one.final_observation)) == ("", True)
            assert len(other.turns) >= turn  # it replied
            kept = turn - 1 + number  # the second seat answers what the first did
            assert other.turns[:kept] == recorded.turns[:kept]
        (sampled,) = job.branch(record.episode_id, 2, n=1, **how).trajectories
        assert sampled.completed
        assert prefix(sampled, 2) == prefix(seat, 2)


@pytest.mark.full("a process of the service plays, which takes seconds to start")
def test_lets_versions_play_each_other_in_the_service(jobs, client):
    body = b'{"versions": [0, 1], "pairs": 2}'
    answer = client.api.connection.call("POST", f"/v1/jobs/{jobs['game'].id}/crossplay", body=body)
    found = json.loads(answer.split(b"\n")[-2])
    names = [one["name"] for one in found["crossplay"]["players"]]
    assert len(names) == 3 and names[-1] == "random"
    assert len(found["crossplay"]["cells"]) == 6
    assert {one["name"] for one in found["ratings"]["ratings"]} == set(names)


def test_plays_on_by_hand_from_the_command_line(jobs):
    job = jobs["alone"]
    episode = f"{job.id}:1:0"
    here = ["--env", "board/TicTacToeVs-v0"]
    arguments = ["branch", episode, "--turn", "1", "--by-hand", *here]
    done = CliRunner().invoke(app, arguments, input="b2\na1\nc3\nb1\na3\n")
    assert done.exit_code == 0, done.output
    assert "return" in done.output
    written = CliRunner().invoke(
        app, ["branch", episode, "--turn", "1", "--action", "b2", "--n", "1", "--json", *here]
    )
    (record,) = json.loads(written.stdout)["trajectories"]
    assert record["turns"][0]["action"] == "b2"


def test_shows_a_stored_episode_on_the_terminal(jobs):
    episode = f"{jobs['game'].id}:1:0"
    shown = CliRunner().invoke(app, ["replay", episode, "--json"])
    records = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [one["episode_id"] for one in records] == [episode] * 2
    assert len({one["trajectory"]["agent"] for one in records}) == 2


def test_replays_at_the_client_what_lives_there(client):
    settings = {name: value for name, value in SHORT.items() if name != "env_kwargs"}
    job = client.train(Count, **settings)
    job.wait(progress=False)
    episode = f"{job.id}:1:0"
    with pytest.raises(UnknownEnvironmentError):
        job.branch(episode, 2)
    with pytest.raises(NotReplayableError):
        list(client.api.branch(job.id, episode, BranchRequest(turn=2)))
    assert len(job.branch(episode, 2, n=2, env=Count).returns) == 2
    Count.drifts = True
    with pytest.raises(NotReplayableError) as refused:
        job.branch(episode, 3, n=1, env=Count)
    assert refused.value.field == "turns.2"
    Count.drifts = False
    for wrong, kind in (((f"{job.id}:1:99", 1), NotFoundError), ((episode, 9), InvalidRequestError)):
        with pytest.raises(kind):
            job.branch(*wrong, env=Count)
