"""The games for two with every seat played from outside, as the pack's entry points name them."""

from functools import partial

from tinkergym_textarena.aec import ArenaGame

chopsticks = partial(ArenaGame, game="Chopsticks-v0")
connect_four = partial(ArenaGame, game="ConnectFour-v0")
game_of_pure_strategy = partial(ArenaGame, game="GameOfPureStrategy-v0")
iterated_matching_pennies = partial(ArenaGame, game="IteratedMatchingPennies-v0")
iterated_prisoners_dilemma = partial(ArenaGame, game="IteratedPrisonersDilemma-v0")
iterated_rock_paper_scissors = partial(ArenaGame, game="IteratedRockPaperScissors-v0")
iterated_two_thirds_average = partial(ArenaGame, game="IteratedTwoThirdsAverage-v0")
kuhn_poker = partial(ArenaGame, game="KuhnPoker-v0")
liars_dice = partial(ArenaGame, game="LiarsDice-v0")
memory_game = partial(ArenaGame, game="MemoryGame-v0")
nim = partial(ArenaGame, game="Nim-v0")
othello = partial(ArenaGame, game="Othello-v0")
pig_dice = partial(ArenaGame, game="PigDice-v0")
simple_negotiation = partial(ArenaGame, game="SimpleNegotiation-v0")
simple_tak = partial(ArenaGame, game="SimpleTak-v0")
tic_tac_toe = partial(ArenaGame, game="TicTacToe-v0")
ultimate_tic_tac_toe = partial(ArenaGame, game="UltimateTicTacToe-v0")
wild_tic_tac_toe = partial(ArenaGame, game="WildTicTacToe-v0")
