import pytest

import tinkergym as tg
from benchmarks.game_accounts import play_accounted

GAMES = ["board/TicTacToe-v0", "board/Gomoku-v0", "games/Nim-v0", "games/RockPaperScissors-v0"]
GAMES += [
    f"tabletop/{name}-v0"
    for name in ("KuhnPoker", "LeducPoker", "PrisonersDilemma", "Signals", "LiarsDice", "Deal")
]


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("on_illegal", ["lose", "random", "retry:2"])
def test_adds_up_records_of_seats_to_what_game_paid(name, on_illegal):
    found = play_accounted(name, range(4), illegal_share=0.1, on_illegal=on_illegal)
    assert [game.seed for game in found] == list(range(4))
    assert all(game.agrees for game in found), found
    assert {game.stop_reason for game in found} == {"terminated"}


class Gifts(tg.TextGame):
    """Pays whoever did not move, also before they ever moved, and after a player has left."""

    players = 4

    def begin(self, rng):
        self.rng, self.moves = rng, 0

    def legal(self, player):
        return ["go"]

    def play(self, player, move):
        self.moves += 1
        there = [one for one in range(4) if one not in self.eliminated]
        for one in there:
            self.give(one, float(self.rng.integers(-8, 8)) / 8)
        if len(there) > 2 and self.rng.random() < 0.2:
            # Perhaps one that has never moved.
            self.eliminate(there[int(self.rng.integers(len(there)))], 0.25)
        if self.moves < 12:
            return None
        return [0.0 if one in self.eliminated else 1.0 for one in range(4)]

    def next_player(self, player):
        there = [one for one in range(4) if one not in self.eliminated]
        return there[int(self.rng.integers(len(there)))]


def test_keeps_rewards_from_others_turns():
    tg.register_game("accounts-test/Gifts-v0", Gifts)
    found = play_accounted("accounts-test/Gifts-v0", range(40), illegal_share=0.0)
    assert all(game.agrees for game in found), [game for game in found if not game.agrees][:2]
    assert {game.stop_reason for game in found} == {"terminated"}
