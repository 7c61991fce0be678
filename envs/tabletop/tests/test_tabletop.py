from itertools import product

import numpy as np
import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.registration.environments import make
from tinkergym.registration.games import make_game
from tinkergym.testing import EnvContract


class TestKuhnPoker(EnvContract):
    environment_id = "tabletop/KuhnPokerVs-v0"


class TestLeducPoker(EnvContract):
    environment_id = "tabletop/LeducPokerVs-v0"


class TestPrisonersDilemma(EnvContract):
    environment_id = "tabletop/PrisonersDilemmaVs-v0"


class TestSignals(EnvContract):
    environment_id = "tabletop/SignalsVs-v0"


class TestLiarsDice(EnvContract):
    environment_id = "tabletop/LiarsDiceVs-v0"


class TestDeal(EnvContract):
    environment_id = "tabletop/DealVs-v0"


def played(table, moves, seed=0):
    """Play moves in the order in which the game asks, and return what each agent earned."""
    table.reset(seed=seed)
    earned = dict.fromkeys(table.possible_agents, 0.0)
    for move in moves:
        table.step(move)
        for agent, reward in table.rewards.items():
            earned[agent] += reward
    return earned


@pytest.mark.parametrize(
    ("moves", "chips"),
    [
        (["check", "check"], 1.0),
        (["check", "bet", "fold"], None),
        (["check", "bet", "call"], 2.0),
        (["bet", "fold"], None),
        (["bet", "call"], 2.0),
    ],
)
def test_pays_better_card_or_player_who_did_not_fold(moves, chips):
    table = make_game("tabletop/KuhnPoker-v0")
    for seed in range(20):
        earned = played(table, moves, seed)
        first, second = table.game.cards
        winner = int(second > first) if chips else len(moves) % 2
        won = chips or 1.0
        assert list(earned.values()) == ([won, -won] if winner == 0 else [-won, won])
        assert all(table.terminations.values())


def test_hides_other_cards_from_poker_player_before_the_showdown():
    table = make_game("tabletop/KuhnPoker-v0")
    names = ("jack", "queen", "king")
    for seed in range(20):
        played(table, ["check"], seed)
        for agent, card in zip(table.possible_agents, table.game.cards, strict=True):
            text = table.observe(agent)["text"]
            assert [name for name in names if name in text] in ([names[card]], [])
        table.step("check")
        assert "other player's card" in table.observe("first")["text"]


def test_ranks_a_pair_above_a_king_and_splits_equal_cards():
    table = make_game("tabletop/LeducPoker-v0")
    table.reset(seed=0)
    found = set()
    for ranks in product(range(3), repeat=3):
        table.reset(seed=0)
        game = table.game
        game.begin_with(ranks)
        for move in ("bet", "call", "check", "check"):
            table.step(move)
        won = table.rewards["first"]
        one, two, public = ranks
        expected = (
            0 if one == two else 3 if one == public else -3 if two == public else 3 * np.sign(one - two)
        )
        assert won == expected == -table.rewards["second"]
        found.add(won)
    assert found == {-3.0, 0.0, 3.0}


def test_allows_one_raise_and_dearer_second_round_in_leduc_poker():
    table = make_game("tabletop/LeducPoker-v0")
    table.reset(seed=1)
    assert table.legal_actions("first") == ["check", "bet"]
    table.step("bet")
    assert table.legal_actions("second") == ["fold", "call", "raise"]
    table.step("raise")
    assert table.legal_actions("first") == ["fold", "call"]
    table.step("call")
    assert "Public card" in table.observe("first")["text"]
    table.step("bet")
    assert table.game.paid == [9, 5]


def test_deals_public_card_by_the_seed_after_the_first_round():
    table = make_game("tabletop/LeducPoker-v0")
    publics = set()
    for seed in range(40):
        table.reset(seed=seed)
        assert table.game.public is None
        table.step("check")
        table.step("check")
        publics.add(table.game.public)
    assert publics == {0, 1, 2}


def test_sums_probabilities_of_all_deals_to_one():
    for name, deals in (("Kuhn", 6), ("Leduc", 24)):
        found = make_game(f"tabletop/{name}Poker-v0").game.deals()
        assert len(found) == deals
        assert sum(chance for chance, _ in found) == pytest.approx(1.0)


def test_pays_prisoners_dilemma_by_round_and_answers_tit_for_tat():
    env = make("tabletop/PrisonersDilemmaVs-v0", opponent="tit_for_tat", rounds=4, seat="first")
    env.reset(seed=0)
    rewards = [env.step(move)[1] for move in ("cooperate", "defect", "defect", "cooperate")]
    assert rewards == [3.0, 5.0, 1.0, 0.0]


def test_hides_each_prisoners_choice_of_the_round():
    table = make_game("tabletop/PrisonersDilemma-v0")
    table.reset(seed=0)
    before = table.observe("player_1")["text"]
    table.step("defect")
    assert table.observe("player_1")["text"] == before
    table.step("cooperate")
    assert "You: cooperate. The other: defect." in table.observe("player_1")["text"]


def test_pays_both_players_alike_in_signals_whose_code_always_works():
    for seat in ("first", "second"):
        env = make("tabletop/SignalsVs-v0", seat=seat, rounds=3)
        for seed in range(10):
            observation, _ = env.reset(seed=seed)
            over, total = False, 0.0
            while not over:
                game = env.unwrapped.game
                action = game.code(0 if seat == "first" else 1, None)
                assert seat == "first" or game.target not in observation.split("Word:")[-1]
                observation, reward, over, _, info = env.step(action)
                total += reward
            assert (total, info["metrics"]["found"]) == (3.0, 1.0)


def test_charges_the_team_for_illegal_move_in_signals():
    earned = played(make_game("tabletop/Signals-v0"), ["red"])
    assert earned == {"speaker": -1.0, "listener": -1.0}


def test_drops_a_player_of_liars_dice_and_others_roll_again():
    table = make_game("tabletop/LiarsDice-v0")
    orders = set()
    for seed in range(40):
        table.reset(seed=seed)
        rng = np.random.default_rng([seed, 5])
        earned = dict.fromkeys(table.possible_agents, 0.0)
        for agent in table.agent_iter():
            over = table.terminations[agent]
            table.step(None if over else str(rng.choice(table.legal_actions(agent))))
            for other, reward in ({} if over else table.rewards).items():
                earned[other] += reward
        assert sorted(earned.values()) == [-1.0, 0.0, 1.0]
        orders.add(tuple(earned.values()))
    assert len(orders) == 6


def test_requires_a_higher_bid_or_liar_after_a_bid():
    table = make_game("tabletop/LiarsDice-v0")
    table.reset(seed=0)
    assert "liar" not in table.legal_actions(table.agent_selection)
    table.step("2x5")
    legal = table.legal_actions(table.agent_selection)
    assert legal[:3] == ["liar", "2x6", "3x1"]


def test_carries_words_in_deal_and_pays_both_for_an_agreement():
    table = make_game("tabletop/Deal-v0")
    table.reset(seed=2)
    table.step("I would like  the books.\nYou may have the hats.")
    assert (
        "The other says: I would like the books. You may have the hats."
        in (table.observe("player_1")["text"])
    )
    game = table.game
    everything = "offer " + " ".join(map(str, game.pile))
    table.step(everything)
    table.step("accept")
    assert table.rewards == {"player_0": 0.0, "player_1": 1.0}


@pytest.mark.parametrize("words", ["", "accept", "offer 9 9 9", "offer 1", "offer a b c", "x" * 500])
def test_treats_non_messages_and_impossible_offers_in_deal_as_illegal(words):
    table = make_game("tabletop/Deal-v0")
    table.reset(seed=0)
    assert not table.is_legal("player_0", words)
    table.step(words)
    assert table.rewards == {"player_0": -1.0, "player_1": 0.0}


def test_lets_only_the_other_player_accept_an_offer_in_deal():
    table = make_game("tabletop/Deal-v0")
    table.reset(seed=0)
    table.step("offer 0 0 0")
    table.step("let me think")
    assert not table.is_legal("player_0", "accept")
    assert "accept" not in table.legal_actions("player_0")
    table.step("take your time")
    assert "accept" in table.legal_actions("player_1")
    table.step("accept")
    assert table.rewards == {"player_0": 0.0, "player_1": 1.0}


def test_ends_deal_without_agreement_when_turns_are_used_up():
    earned = played(make_game("tabletop/Deal-v0", turns=3), ["hello", "hello", "bye"])
    assert earned == {"player_0": 0.0, "player_1": 0.0}


def test_agrees_with_itself_as_fair_player_of_deal():
    table = make_game("tabletop/Deal-v0")
    totals = []
    for seed in range(40):
        table.reset(seed=seed)
        while not any(table.terminations.values()):
            table.step(table.scripted_action(table.agent_selection, "fair", None))
        totals.append(sum(table.rewards.values()))
    assert np.mean(totals) > 0.8


@pytest.mark.parametrize(
    ("game", "settings", "field"),
    [
        ("PrisonersDilemma", {"rounds": 0}, "rounds"),
        ("Signals", {"objects": 1}, "objects"),
        ("Signals", {"rounds": 99}, "rounds"),
        ("LiarsDice", {"dice": 6}, "dice"),
        ("Deal", {"turns": 1}, "turns"),
    ],
)
def test_rejects_setting_out_of_range_by_name(game, settings, field):
    with pytest.raises(InvalidRequestError) as refused:
        make_game(f"tabletop/{game}-v0", **settings)
    assert refused.value.field == field
