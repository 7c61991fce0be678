"""The games for one player, as the pack's entry points name them."""

from functools import partial

from tinkergym_textarena.environments import SingleEnv

game_2048 = partial(SingleEnv, game="2048-v0")
bandit = partial(SingleEnv, game="Bandit-v0")
blackjack = partial(SingleEnv, game="Blackjack-v0")
fifteen_puzzle = partial(SingleEnv, game="FifteenPuzzle-v0")
frozen_lake = partial(SingleEnv, game="FrozenLake-v0")
guess_the_number = partial(SingleEnv, game="GuessTheNumber-v0")
lights_out = partial(SingleEnv, game="LightsOut-v0")
mastermind = partial(SingleEnv, game="Mastermind-v0")
minesweeper = partial(SingleEnv, game="Minesweeper-v0")
secretary = partial(SingleEnv, game="Secretary-v0")
tower_of_hanoi = partial(SingleEnv, game="TowerOfHanoi-v0")
