import json

import pytest

from backend.episodes.episode_requests import step_requests
from backend.episodes.league_book import Known, LeagueBook, snapshots
from tests.backend.seats import result_of
from tinkergym.algorithms import GRPO
from tinkergym.schema.fixed_players import League
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import SharedWith, Train
from tinkergym.testing.made_up_episodes import one_turn_episode

LEAGUE = League(anchor_share=0, current_share=0, snapshot_every=2, most_snapshots=3)
SPEC = RLSpec(
    environment=EnvironmentRef(id="board/TicTacToe-v0"),
    agents={"x": Train(), "o": SharedWith("x")},
    algorithm=GRPO(group_size=2, groups_per_step=2),
    self_play=LEAGUE,
    steps=20,
)


@pytest.mark.parametrize(
    ("newest", "kept"), [(0, [0]), (1, [0]), (2, [0, 2]), (5, [0, 2, 4]), (9, [0, 6, 8])]
)
def test_keeps_the_first_snapshot_and_the_newest(newest, kept):
    assert snapshots(LEAGUE, newest) == kept


def test_concludes_little_from_few_games():
    known = Known(newest=4, scores={"x@2": (2, 2.0), "x@4": (98, 98.0)})
    assert known.beaten_share("x", 0) == 0.5
    assert known.beaten_share("x", 2) == 0.75
    assert known.beaten_share("x", 4) == 0.99


def played(book, step, *, won):
    """Play a step in which the seat that learns always wins, or always loses."""
    found = []
    for request in step_requests("job-1", SPEC, step, book.known(step)):
        rewards = {agent: 1.0 if seat.trained is won else -1.0 for agent, seat in request.seats.items()}
        episodes = [one_turn_episode(reward, agent=agent) for agent, reward in rewards.items()]
        found.append((request, result_of(request, *episodes)))
    return found


def test_counts_points_only_once_requests_may_depend_on_them():
    book = LeagueBook(SPEC)
    book.add(1, played(book, 1, won=True))
    assert book.known(2).scores == {}
    assert book.known(3).scores == {"x@0": (4, 4.0)}
    book.add(2, played(book, 2, won=False))
    assert book.known(3).scores == {"x@0": (4, 4.0)}
    assert book.known(4).scores == {"x@0": (8, 4.0)}


def test_draws_same_opponents_from_restored_book():
    book = LeagueBook(SPEC)
    for step in (1, 2, 3):
        book.add(step, played(book, step, won=True))
    again = LeagueBook(SPEC)
    again.restore(json.loads(json.dumps(book.state())))
    assert again.known(4) == book.known(4)
    assert step_requests("job-1", SPEC, 4, again.known(4)) == step_requests("job-1", SPEC, 4, book.known(4))


def test_keeps_versions_that_later_steps_may_play_against():
    book = LeagueBook(SPEC)
    assert book.kept(9) == {0, 4, 6, 8}
    assert [step for step in range(1, 7) if book.is_snapshot(step)] == [2, 4, 6]
