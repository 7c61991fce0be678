"""Games small enough to know every move."""

from tinkergym import TextGame
from tinkergym.errors import IllegalMoveError


class Nim(TextGame):
    def begin(self, rng):
        self.left = int(rng.integers(8, 16))

    def observe(self, player):
        return f"{self.left} stones. Take 1, 2 or 3; who takes the last one wins."

    def legal(self, player):
        return ["1", "2", "3"][: self.left]

    def play(self, player, move):
        self.left -= int(move)
        return 1.0 if self.left == 0 else None


class Evens(TextGame):
    """Both say 0 or 1; who is player 0 wants equal numbers. Two rounds, a point for each."""

    players = ("Even", "Odd")
    simultaneous = True

    def begin(self, rng):
        self.rounds = 0

    def legal(self, player):
        return ["0", "1"]

    def play_round(self, moves):
        self.rounds += 1
        self.tell(f"It was {moves[0]} and {moves[1]}.")
        gain = 1.0 if moves[0] == moves[1] else -1.0
        if self.rounds == 2:
            return [gain, -gain]
        self.give(0, gain)
        self.give(1, -gain)
        return None


class Three(TextGame):
    """Three in turn say a word; the third ends it."""

    players = 3
    opponents = ()
    closed = False

    def begin(self, rng):
        self.said = []

    def observe(self, player):
        return "Say something."

    def read(self, player, action):
        if not action:
            raise IllegalMoveError("silence says nothing")
        return action

    def play(self, player, move):
        self.said.append(move)
        for other in range(3):
            if other != player:
                self.tell(f"player {player} said {move}.", other)
        return (0.0, 0.5, 2.0) if len(self.said) == 3 else None
