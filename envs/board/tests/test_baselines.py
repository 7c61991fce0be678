import numpy as np
import pytest
from tinkergym_board.baselines import PLAYERS, returns
from tinkergym_board.players import perfect_player
from tinkergym_board.rules import Position, Rules

from tinkergym.registration.environments import make


@pytest.mark.parametrize(
    ("player", "low", "high"), [("random", -0.15, 0.15), ("heuristic", 0.85, 0.97), ("perfect", 0.9, 1.0)]
)
def test_scores_against_random_tic_tac_toe_as_the_page_says(player, low, high):
    assert (
        low <= np.mean(returns(make("board/TicTacToeVs-v0").unwrapped, PLAYERS[player], range(200))) <= high
    )


def test_scores_096_against_random_by_perfect_play_from_drawn_seat():
    """Exactly: averaged over every reply that the opponent can draw."""

    def worth(position, seat):
        if position.over:
            return 0.0 if position.winner is None else 1.0 if position.winner == seat else -1.0
        if position.to_move == seat:
            return worth(position.played(perfect_player(position, np.random.default_rng(0))), seat)
        return np.mean([worth(position.played(cell), seat) for cell in position.free])

    start = Position(Rules(3, 3))
    assert (worth(start, 0) + worth(start, 1)) / 2 == pytest.approx(0.956, abs=5e-4)


def test_scores_0_against_random_by_random_legal_play():
    def worth(position, seat):
        if position.over:
            return 0.0 if position.winner is None else 1.0 if position.winner == seat else -1.0
        if (position, seat) not in known:
            known[position, seat] = np.mean([worth(position.played(cell), seat) for cell in position.free])
        return known[position, seat]

    known = {}
    start = Position(Rules(3, 3))
    assert worth(start, 0) == pytest.approx(0.297, abs=5e-4)
    assert (worth(start, 0) + worth(start, 1)) / 2 == pytest.approx(0.0, abs=1e-12)


def test_scores_at_most_096_against_random_by_any_play():
    """The best response to a random opponent, which also risks a loss where that pays on average."""

    def worth(position, seat):
        if position.over:
            return 0.0 if position.winner is None else 1.0 if position.winner == seat else -1.0
        if (position, seat) not in known:
            values = [worth(position.played(cell), seat) for cell in position.free]
            known[position, seat] = max(values) if position.to_move == seat else np.mean(values)
        return known[position, seat]

    known = {}
    start = Position(Rules(3, 3))
    assert (worth(start, 0) + worth(start, 1)) / 2 == pytest.approx(0.960, abs=5e-4)
