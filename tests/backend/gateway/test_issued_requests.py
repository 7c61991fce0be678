import pytest

from backend.episodes.episode_requests import step_requests
from backend.gateway.issued_requests import issued
from backend.store.local_blobs import LocalBlobs
from tinkergym.errors import NotReplayableError
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.fixed_players import External, League, Scripted
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import SharedWith, Train


class Book:
    """A league that has two past versions."""

    def versions(self, agent, league):
        return [0, 8]

    def beaten_share(self, agent, version):
        return 0.3 if version else 0.9


def record(request):
    """What the workers submit for a request, in brief."""
    turn = {"segment": 0, "start": 1, "end": 2, "finish_reason": "stop", "observation": "", "action": "a1"}
    segment = {"token_ids": [1, 2], "loss_mask": [False, True], "sampling_logprobs": [None, -1.0]}
    seats = [
        {
            "agent": agent,
            "segments": [segment],
            "turns": [{**turn, "policy_version": request.seats[agent].policy_version, "reward": 0.0}],
            "terminated": True,
            "truncated": False,
            "stop_reason": "terminated",
            "seed": request.seed,
        }
        for agent in request.sampled_seats
    ]
    return EpisodeResult.model_validate(
        {"episode_id": request.episode_id, "lease_id": "l", "trajectories": seats}
    )


def game(environment="board/TicTacToe-v0", **settings):
    return RLSpec(environment={"id": environment}, steps=20, algorithm=GROUPS, **settings)


GROUPS = {"group_size": 2, "groups_per_step": 8}
LEAGUE = League(anchors=[Scripted("random")], anchor_share=0.3, current_share=0.3)
SPECS = {
    "alone": game("board/TicTacToeVs-v0"),
    "self-play": game(self_play=LEAGUE, agents={"x": Train(), "o": SharedWith("x")}),
    "at a seat": game(agents={"x": Train(), "o": LEAGUE}),
}


@pytest.mark.parametrize("name", SPECS)
def test_derives_again_as_what_episodes_were_issued(name, tmp_path):
    requests = step_requests("job-1", SPECS[name], 9, Book())
    assert [issued(SPECS[name], record(one), LocalBlobs(tmp_path)) for one in requests] == requests
    if name != "alone":
        assert len({seat.player for one in requests for seat in one.seats.values()}) >= 3


def test_refuses_what_an_external_model_played(tmp_path):
    external = External(url="https://models.example/v1", model="m")
    spec = game(agents={"x": Train(), "o": external})
    (request, *_) = step_requests("job-1", spec, 1)
    with pytest.raises(NotReplayableError):
        issued(spec, record(request), LocalBlobs(tmp_path))
