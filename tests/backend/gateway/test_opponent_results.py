from backend.episodes.episode_requests import step_requests
from backend.episodes.league_book import LeagueBook
from backend.gateway.episode_index import EpisodeRow
from backend.gateway.opponent_results import opponent_results
from tinkergym.algorithms import GRPO
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import SharedWith, Train
from tinkergym.schema.opponents import League, Scripted

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


def test_separates_the_results_by_opponent_and_over_time():
    found = opponent_results(SPEC, range(1, 401), rows)
    assert (found.steps, found.read, sorted(found.opponents)) == (400, 200, ["past", "random"])
    for name, mean in [("random", 1.0), ("past", -1.0)]:
        total, *windows = found.opponents[name]
        assert (len(windows), total.episodes) == (20, sum(one.episodes for one in windows))
        assert {one.mean for one in windows} == {total.mean} == {mean}
        assert total.low <= mean <= total.high


def test_knows_nothing_without_stored_games():
    assert opponent_results(SPEC, [], rows).opponents == {}
