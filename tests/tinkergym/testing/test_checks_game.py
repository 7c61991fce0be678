import random
from importlib.util import find_spec

import pytest

from tinkergym.games.text_game import TextGame
from tinkergym.registration.games import make_game, register_game
from tinkergym.registration.packs import find_packs
from tinkergym.testing.checks_subject import Subject
from tinkergym.testing.contract_checks import Outcome, run_checks


def can_play(name):
    """Whether what it needs is installed: the bridge to PettingZoo needs packages that not everybody has."""
    return not name.startswith("pettingzoo/") or find_spec("rlcard")


GAMES = sorted(name for pack in find_packs() for name in pack.game_ids)


@pytest.mark.parametrize("name", list(filter(can_play, GAMES)))
def test_passes_every_check_of_games_in_installed_ones(name):
    found = list(run_checks(Subject(make=lambda: make_game(name))))
    assert [result.message for result in found if result.outcome is not Outcome.OK] == []
    assert "pettingzoo api" in {result.name for result in found}


class Unfair(TextGame):
    """Draws from a generator that no seed reaches."""

    def begin(self, rng):
        self.left = 6
        # Of so many that no two games ever draw the same.
        self.heap = random.getrandbits(60)

    def observe(self, player):
        return f"{self.left} left of heap {self.heap}. Take 1 or 2."

    def legal(self, player):
        return ["1", "2"][: self.left]

    def play(self, player, move):
        self.left -= int(move)
        return 1.0 if self.left == 0 else None


def test_catches_game_that_the_seed_does_not_decide():
    register_game("tests/Unfair-v0", Unfair)
    found = {result.name: result for result in run_checks(Subject(make=lambda: make_game("tests/Unfair-v0")))}
    assert found["pettingzoo seeds"].outcome is Outcome.FAILED
    assert found["global randomness"].outcome is Outcome.FAILED


def test_counts_game_that_cannot_begin_as_one_failure():
    class NoHeaps(Unfair):
        def begin(self, rng):
            raise RuntimeError("no heaps")

    register_game("tests/NoHeaps-v0", NoHeaps)
    found = run_checks(Subject(make=lambda: make_game("tests/NoHeaps-v0")))
    first, *others = found
    assert (first.name, first.outcome) == ("reset", Outcome.FAILED)
    assert "no heaps" in first.message
    assert {result.outcome for result in others} == {Outcome.SKIPPED}
