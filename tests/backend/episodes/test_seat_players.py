"""Who plays which seat: drawn from the seed, with every share as large as it is promised."""

from __future__ import annotations

from collections import Counter

import pytest

from backend.episodes.episode_requests import step_requests
from backend.episodes.league_book import Known, LeagueBook, snapshots
from backend.episodes.seat_players import Current, Past, bind, label_of, share_of
from tests.backend.seats import result_of
from tinkergym.algorithms import GRPO
from tinkergym.schema.fixed_players import Base, Frozen, League, Scripted
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import SharedWith, Train
from tinkergym.testing.made_up_episodes import one_turn_episode

LEAGUE = League(anchors=[Scripted("random"), Base()], anchor_share=0.2, current_share=0.5)


def spec(**settings):
    return RLSpec(
        **{
            "environment": EnvironmentRef(id="board/TicTacToe-v0"),
            "agents": {"x": Train(), "o": SharedWith("x")},
            "algorithm": GRPO(group_size=2, groups_per_step=10),
            "steps": 100,
            **settings,
        }
    )


def labels(job, step, known=None):
    known = known or LeagueBook(job).known(step)
    return [
        {agent: label_of(player) for agent, player in bind(job, step, group, known).items()}
        for group in range(10)
    ]


def test_plays_fixed_players_in_their_seats_in_every_episode():
    job = spec(agents={"x": Train(), "o": Scripted("heuristic")})
    for request in step_requests("job-1", job, 3):
        assert request.sampled_seats == ["x"]
        assert request.seats["o"].table.name == "heuristic"
        assert not request.seats["o"].trained
    other = spec(agents={"x": Train(), "o": Frozen("job-2/x@7")})
    seat = step_requests("job-1", other, 3)[0].seats["o"]
    assert (seat.policy, seat.policy_version, seat.trained) == ("job-2/x@7", 7, False)
    seat = step_requests("job-1", spec(agents={"x": Train(), "o": Base()}), 3)[0].seats["o"]
    assert (seat.policy, seat.policy_version, seat.trained) == (job.model, 0, False)


def test_gives_each_step_the_promised_groups_of_a_share():
    job = spec(self_play=LEAGUE)
    for step in range(1, 30):
        counted = Counter(share_of(job, LEAGUE, step, group) for group in range(10))
        assert counted == {"anchor": 2, "current": 5, "past": 3}


def test_trains_one_seat_in_self_play_and_all_when_mirrored():
    job = spec(self_play=LEAGUE)
    drawn = [players for step in range(40, 60) for players in labels(job, step)]
    mirrored = [players for players in drawn if set(players.values()) == {"trained"}]
    assert len(mirrored) == 100
    learners = Counter(
        agent
        for players in drawn
        if players not in mirrored
        for agent in players
        if players[agent] == "trained"
    )
    assert sum(learners.values()) == 100
    assert min(learners.values()) > 30
    against = {label for players in drawn for label in players.values()} - {"trained"}
    assert {"random", "base", "past@0", "past@10"} <= against


def test_draws_the_same_whenever_and_wherever_it_is_made():
    job = spec(self_play=LEAGUE)
    assert labels(job, 33) == labels(spec(self_play=LEAGUE), 33)
    assert labels(job, 33) != labels(spec(self_play=LEAGUE, seed=1), 33)
    requests = step_requests("job-1", job, 33)
    for pair in zip(requests[::2], requests[1::2], strict=True):
        assert pair[0].seats.keys() == pair[1].seats.keys()
        assert len({tuple(seat.player for seat in one.seats.values()) for one in pair}) == 1


def test_never_learns_from_a_seat_with_a_league():
    job = spec(agents={"x": Train(), "o": LEAGUE})
    for group in range(10):
        players = bind(job, 40, group, Known(30, {}))
        assert players["x"] == Current(agent="x")
        assert players["o"] != Current(agent="x")


def test_draws_what_is_often_beaten_seldom():
    league = League(anchors=[], anchor_share=0, current_share=0, past="prioritized")
    job = spec(agents={"x": Train(), "o": league})
    known = Known(20, {"x@0": (1000, 1000.0), "x@10": (1000, 0.0), "x@20": (1000, 500.0)})
    drawn = Counter(bind(job, step, group, known)["o"] for step in range(1, 60) for group in range(10))
    easy, hard, even = (drawn[Past(agent="x", version=version)] for version in (0, 10, 20))
    assert hard > even > 3 * easy > 0


def test_keeps_first_and_newest_versions_as_opponents():
    league = League(snapshot_every=5, most_snapshots=3)
    assert snapshots(league, 0) == [0]
    assert snapshots(league, 27) == [0, 20, 25]


def played(job, step, points, others=0.0):
    known = LeagueBook(job).known(step)
    seats = one_turn_episode(points, agent="x"), one_turn_episode(others, agent="o")
    return [
        (request, result_of(request, *seats))
        for request in step_requests("job-1", job, step, known)
        if request.seats["o"].player == "past@0"
    ]


def test_counts_opponents_results_once_requests_may_know_them_over_restarts():
    league = League(anchors=[], anchor_share=0, current_share=0, past="prioritized")
    job = spec(agents={"x": Train(), "o": league})
    book = LeagueBook(job)
    book.add(1, played(job, 1, 1.0))
    assert book.known(2).beaten_share("x", 0) == pytest.approx(0.5)
    book.add(2, [])
    assert book.known(3).beaten_share("x", 0) == pytest.approx(21 / 22)
    again = LeagueBook(job)
    again.restore(book.state())
    assert again.known(3) == book.known(3)


@pytest.mark.parametrize(
    ("own", "others", "share"), [(3.0, 5.0, 1 / 22), (3.0, 3.0, 1 / 2), (-1.0, -2.0, 21 / 22)]
)
def test_decides_who_beat_whom_by_earnings_whatever_the_game_pays(own, others, share):
    league = League(anchors=[], anchor_share=0, current_share=0, past="prioritized")
    job = spec(agents={"x": Train(), "o": league})
    book = LeagueBook(job)
    book.add(1, played(job, 1, own, others))
    assert book.known(3).beaten_share("x", 0) == pytest.approx(share)
