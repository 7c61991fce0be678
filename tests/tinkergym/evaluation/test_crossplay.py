import json
import math

import pytest

from tinkergym.agent.renderer import Renderer
from tinkergym.errors import InvalidRequestError
from tinkergym.evaluation.crossplay import CrossPlay, Encounter, crossplay
from tinkergym.evaluation.matches import GameEnd, Match, MatchResult, Player, play_matches
from tinkergym.evaluation.statistics import clustered_interval
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits
from tinkergym.testing.bundles import byte_bundle
from tinkergym.testing.samplers import ScriptedSampler

NIM = "games/Nim-v0"


class Says:
    """A policy that gives one answer to everything."""

    version = None
    model = "scripted"
    system_prompt, reasoning, tools = None, "keep", None
    decoding = Decoding(max_turn_tokens=16)

    def __init__(self, name, answer, limits=None):
        self.name, self.answer, self.limits = name, answer, limits or Limits()
        self.renderer = Renderer.from_bundle(byte_bundle())

    def sampler(self):
        return ScriptedSampler(self.renderer, lambda _prompt: self.answer)


def scripted(*names):
    return [Player(name=name, plays=name) for name in names]


def test_rates_perfect_player_above_random_one():
    found = crossplay(scripted("random", "perfect"), NIM, pairs=60)
    assert found.cell("perfect", "random").mean_return > 0.8
    assert found.cell("random", "perfect").mean_return == -found.cell("perfect", "random").mean_return
    ratings = found.ratings()
    assert ratings["random"].rating == 0.0 < ratings["perfect"].low


def test_pairs_same_seed_with_the_seats_swapped():
    found = crossplay(scripted("random", "perfect"), NIM, pairs=3, seed=7)
    games = [one.result.match for one in found.encounters if one.row == 0]
    assert sorted((match.seed, match.seats["player_0"].name) for match in games) == [
        (seed, name) for seed in (7, 8, 9) for name in ("perfect", "random")
    ]


def test_gives_same_matrix_by_the_same_seeds():
    one, two = (crossplay(scripted("random", "perfect"), NIM, pairs=10).to_json() for _ in range(2))
    assert one == two


def test_counts_win_by_others_illegal_move_apart_without_rating():
    players = [*scripted("random"), Player(name="mute", plays=Says("mute", "nothing"))]
    found = crossplay(players, NIM, pairs=5)
    cell = found.cell("random", "mute")
    assert (cell.wins, cell.losses, cell.forfeits_won, cell.forfeits_lost) == (0, 0, 10, 0)
    assert cell.mean_return == 1.0
    ratings = found.ratings()
    assert ratings["mute"].pairs == 0
    assert ratings["mute"].rating == pytest.approx(0.0)
    assert ratings.left_out["forfeit"] == 10


def test_plays_policies_against_policies_and_scripts():
    players = [
        *scripted("random"),
        Player(name="one", plays=Says("one", "1")),
        Player(name="two", plays=Says("two", "2")),
    ]
    found = crossplay(players, NIM, pairs=4)
    cell = found.cell("one", "two")
    assert cell.games == 8
    assert cell.failed == 0
    # Who takes two from a heap of one forfeits.
    assert cell.wins + cell.losses + cell.forfeits_won + cell.forfeits_lost == 8


def test_plays_policy_of_one_seat_at_that_seat_only():
    bound = Player(name="second", plays="perfect", seats=("player_1",))
    found = crossplay([*scripted("random"), bound], NIM, pairs=4)
    assert {one.agent for one in found.encounters if one.row == 1} == {"player_1"}
    assert found.cell("second", "random").games == 4


def test_rejects_meeting_of_players_bound_to_same_seat():
    bound = [Player(name=name, plays=name, seats=("player_1",)) for name in ("random", "perfect")]
    with pytest.raises(InvalidRequestError) as refused:
        crossplay(bound, NIM, pairs=1)
    assert refused.value.field == "players"


def test_neither_scores_nor_rates_game_cut_off_by_a_limit():
    slow = Player(name="slow", plays=Says("slow", "1", Limits(max_turns=1)))
    found = crossplay([*scripted("random"), slow], NIM, pairs=3)
    assert found.cell("slow", "random").cut_off == 6
    assert found.ratings()["slow"].pairs == 0


def test_counts_game_that_ended_before_a_policy_had_a_turn():
    players = [Player(name=name, plays=Says(name, "nothing")) for name in ("one", "two")]
    cell = crossplay(players, NIM, pairs=2).cell("one", "two")
    assert (cell.failed, cell.forfeits_won, cell.forfeits_lost) == (0, 2, 2)


class Breaks:
    def act(self, observation):
        raise RuntimeError("the player broke")


def test_counts_broken_game_as_failure_without_result():
    players = [Player(name="broken", plays=Breaks()), Player(name="one", plays=Says("one", "1"))]
    match = Match(seats={"player_0": players[1], "player_1": players[0]}, seed=0)
    (result,) = play_matches([match], EnvironmentRef(id=NIM))
    assert result.end is GameEnd.FAILED
    assert "the player broke" in result.error


def test_rotates_each_of_three_players_against_two_others():
    found = crossplay(scripted("random", "cautious"), "tabletop/LiarsDice-v0", pairs=30)
    assert found.cell("cautious", "random").games == 90
    for each in found.encounters:
        own, *rest = [each.result.returns[agent] for agent in (each.agent, *each.rivals)]
        assert (len(rest), each.lead) == (2, pytest.approx(own - sum(rest) / 2))
    assert found.ratings()["cautious"].low > 0


DICE, SEATS = "tabletop/LiarsDice-v0", ("player_0", "player_1", "player_2")


def bound(*seats, plays="cautious"):
    """A policy for one seat of three each, as a job trains them."""
    return [Player(name=f"job-1/{seat}@9", plays=plays, seats=(seat,), step=9) for seat in seats]


def test_seats_third_policy_beside_two_that_meet_in_one_seat():
    found = crossplay([*bound("player_0", "player_1"), *scripted("random")], DICE, pairs=5)
    one, other, rest = found.names
    for row, column in ((one, other), (other, one)):
        assert found.cell(row, column).games == 5
    own = [each for each in found.encounters if (each.row, each.column) == (0, 1)]
    assert {agent: player.name for agent, player in own[0].result.match.seats.items()} == dict(
        zip(SEATS, (one, other, rest), strict=True)
    )
    # Only the other policy is a rival; what a third player earns says nothing about the two.
    assert all(each.rivals == ("player_1",) for each in own)
    returns = [each.result.returns for each in own]
    assert [each.lead for each in own] == [paid["player_0"] - paid["player_1"] for paid in returns]
    assert found.cell(one, rest).games == 5
    # Each game is rated once, though it is in the matrix from both sides.
    assert sum(rating.pairs for rating in found.ratings().ratings) <= 2 * 3 * 5


def test_plays_three_policies_of_one_seat_in_the_same_games():
    found = crossplay(bound(*SEATS), DICE, pairs=2, others=bound(*SEATS))
    assert len({id(each.result) for each in found.encounters}) == 2
    assert {(each.row, each.column) for each in found.encounters} == {
        (row, column) for row in range(3) for column in range(3) if row != column
    }


def test_gives_last_seat_to_the_first_that_can_play():
    third = bound("player_2", plays="random")
    found = crossplay(bound("player_0", "player_1"), DICE, pairs=2, others=[*third, *scripted("cautious")])
    assert {each.result.match.seats["player_2"].name for each in found.encounters} == {"job-1/player_2@9"}
    assert found.to_json()["others"] == ["job-1/player_2@9", "cautious"]
    with pytest.raises(InvalidRequestError) as refused:
        crossplay(bound("player_0", "player_1"), DICE, pairs=2)
    assert refused.value.field == "players"


def test_rates_partners_who_earn_the_same_alike():
    found = crossplay(scripted("random", "code"), "tabletop/Signals-v0", pairs=20)
    assert found.cell("random", "code").mean_return == found.cell("code", "random").mean_return
    assert found.ratings()["code"].rating == 0.0


@pytest.mark.parametrize(
    ("players", "pairs", "field"),
    [
        (scripted("random"), 5, "players"),
        (scripted("random", "random"), 5, "players"),
        (scripted("random", "perfect"), 0, "pairs"),
        (scripted("random", "prefect"), 5, "players"),
    ],
)
def test_rejects_by_name_what_cannot_be_played(players, pairs, field):
    with pytest.raises(InvalidRequestError) as refused:
        crossplay(players, NIM, pairs=pairs)
    assert refused.value.field == field


def test_gives_matrix_and_ratings_as_json_and_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    players = [
        Player(name="job-1@0", plays="random", step=0),
        Player(name="job-1@9", plays="perfect", step=9),
        *scripted("random"),
    ]
    found = crossplay(players, NIM, pairs=5)
    ratings = found.ratings()
    json.dumps([found.to_json(), ratings.to_json()], allow_nan=False)
    assert [one.step for one in ratings.over_time()] == [0, 9]
    for path in (found.to_png(tmp_path / "m.png"), ratings.to_png(tmp_path / "r.png")):
        assert path.read_bytes().startswith(b"\x89PNG")


def mirrored(*pairs, ends=None):
    """Cross-play of a and b: for each pair the returns of a in both seats, b's being the opposite."""
    a, b = scripted("a", "b")
    encounters = []
    for seed, (first, second) in enumerate(pairs):
        for own, other, paid, end in zip(
            ("x", "y"), ("y", "x"), (first, second), (ends or {}).get(seed, [GameEnd.PLAYED] * 2), strict=True
        ):
            result = MatchResult(
                match=Match(seats={own: a, other: b}, seed=seed),
                end=end,
                returns={own: paid, other: -paid},
                forfeits=frozenset([other] if end is GameEnd.FORFEIT else []),
            )
            encounters.append(Encounter(row=0, column=1, agent=own, rivals=(other,), result=result))
            encounters.append(Encounter(row=1, column=0, agent=other, rivals=(own,), result=result))
    return CrossPlay(
        game="own/Game-v0", players=(a, b), encounters=tuple(encounters), seeds=range(len(pairs))
    )


def test_rates_a_pair_by_both_games():
    # b wins the first game of each pair, and a wins more in the second.
    found = mirrored(*[(-1.0, 3.0)] * 6)
    assert found.ratings(anchor="b")["a"].rating > 200
    # A seat that always wins says nothing about the players.
    seat = mirrored(*[(1.0, -1.0)] * 6).ratings(anchor="b")["a"]
    assert (seat.rating, seat.pairs) == (pytest.approx(0.0), 6)


@pytest.mark.parametrize("end", [GameEnd.FORFEIT, GameEnd.CUT_OFF, GameEnd.FAILED])
def test_rates_no_pair_with_a_game_that_was_not_played(end):
    ends = {0: [end, GameEnd.PLAYED], 1: [GameEnd.PLAYED, end]}
    ratings = mirrored(*[(1.0, 1.0)] * 2, *[(-1.0, -1.0)] * 3, ends=ends).ratings(anchor="b")
    assert ratings["a"].pairs == 3
    assert ratings["a"].rating < -200
    assert (ratings.left_out[end.value], ratings.left_out["half_pair"]) == (2, 2)


def test_counts_the_games_of_a_seed_as_one_cluster():
    pairs = [(2.0, 2.0), (-3.0, -3.0), (4.0, 3.0), (0.0, 1.0)]
    cell = mirrored(*pairs).cell("a", "b")
    assert (cell.low, cell.high) == clustered_interval([list(one) for one in pairs])
    assert cell.high - cell.low > 1.2 * (
        (apart := clustered_interval([[one] for pair in pairs for one in pair]))[1] - apart[0]
    )


def test_shows_a_player_that_won_everything_with_open_ends():
    found = mirrored(*[(1.0, 1.0)] * 20)
    cell = found.cell("a", "b")
    # Even 20 seeds leave losses possible.
    assert (0.4 < cell.low < 0.9, cell.high) == (True, 1.0)
    ratings = found.ratings(anchor="b")
    assert ratings["a"].high == math.inf
    assert ratings.to_json()["ratings"][0]["interval_95"][1] is None
