from itertools import pairwise
from math import inf

import pytest

from backend.episodes.episode_requests import step_requests
from backend.episodes.league_book import LeagueBook
from backend.gateway.episode_index import EpisodeRow
from backend.gateway.opponent_results import opponent_results, steps_in_order
from tinkergym.algorithms import GRPO
from tinkergym.schema.fixed_players import League, Scripted
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import SharedWith, Train

SPEC = RLSpec(
    environment=EnvironmentRef(id="board/TicTacToe-v0"),
    agents={"x": Train(), "o": SharedWith("x")},
    algorithm=GRPO(group_size=2, groups_per_step=4),
    self_play=League(anchors=[Scripted("random")], anchor_share=0.5, current_share=0, snapshot_every=2),
    steps=500,
)


def rows(step):
    """Return a step's rows: the policy wins against `random`, and loses against its past."""
    known = LeagueBook(SPEC).known(step)
    for request in step_requests("job-1", SPEC, step, known):
        against = {seat.player for seat in request.seats.values()}
        for agent, seat in request.seats.items():
            if seat.table is None:
                earned = (1.0 if "random" in against else -1.0) * (1 if seat.trained else -1)
                yield EpisodeRow(request.index, agent, earned, "terminated", 1, 3, True, seat.trained)


def results(steps, read, is_recorded=lambda step: True, **settings):
    return opponent_results(SPEC, steps, read, is_recorded=is_recorded, **{"until": inf} | settings)


def test_separates_the_results_by_opponent_and_over_time():
    found = results(range(1, 401), rows)
    assert (found.steps, found.read, sorted(found.opponents)) == (400, 200, ["past", "random"])
    for name, mean in [("random", 1.0), ("past", -1.0)]:
        total, *windows = found.opponents[name]
        assert (len(windows), total.episodes) == (20, sum(one.episodes for one in windows))
        assert {one.mean for one in windows} == {total.mean} == {mean}
        assert total.low <= mean <= total.high


def test_knows_nothing_without_stored_games():
    assert results([], rows).opponents == {}


def test_reads_on_where_the_last_call_ran_out_of_time():
    known, now = {}, [0.0]

    def read(step):
        """Return a step's rows: after a second, unless it is recorded and was read before."""
        if step not in known:
            now[0] += 1.0
        if step < 16:
            known[step] = list(rows(step))
        return known.get(step) or rows(step)

    calls = []
    while not calls or calls[-1].more:
        calls.append(
            results(range(17), read, lambda step: step < 16, until=now[0] + 3.5, clock=lambda: now[0])
        )
    assert [(call.read, call.steps) for call in calls] == [(4, 17), (8, 17), (12, 17), (16, 17), (17, 17)]
    assert calls[-1] == results(range(17), rows)


@pytest.mark.parametrize("count", [1, 2, 5, 16, 100, 1000])
def test_spreads_any_number_of_first_steps_over_all(count):
    order = steps_in_order(range(count))
    assert sorted(order) == list(range(count))
    for length in range(1, count):
        first = sorted(order[:length])
        gaps = [after - before for before, after in pairwise([*first, count])]
        assert first[0] == 0 and max(gaps) <= 4 * count / length
