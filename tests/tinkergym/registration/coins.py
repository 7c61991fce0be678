"""A game to register."""

import tinkergym as tg


class Coins(tg.TextGame):
    """Take 1 or 2 coins; who takes the last wins."""

    opponents = ("random", "greedy")

    def __init__(self, coins=5):
        self.coins = coins

    def begin(self, rng):
        self.left = self.coins

    def observe(self, player):
        return f"{self.left} coins."

    def legal(self, player):
        return ["1", "2"][: self.left]

    def play(self, player, move):
        self.left -= int(move)
        return 1.0 if self.left == 0 else None

    def greedy(self, player, rng):
        return self.legal(player)[-1]
