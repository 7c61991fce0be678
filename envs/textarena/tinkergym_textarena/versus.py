"""The games for two against an opponent, as the pack's entry points name them."""

from functools import partial

from tinkergym_textarena.environments import VersusEnv

chopsticks = partial(VersusEnv, game="Chopsticks-v0")
connect_four = partial(VersusEnv, game="ConnectFour-v0")
game_of_pure_strategy = partial(VersusEnv, game="GameOfPureStrategy-v0")
iterated_matching_pennies = partial(VersusEnv, game="IteratedMatchingPennies-v0")
iterated_prisoners_dilemma = partial(VersusEnv, game="IteratedPrisonersDilemma-v0")
iterated_rock_paper_scissors = partial(VersusEnv, game="IteratedRockPaperScissors-v0")
iterated_two_thirds_average = partial(VersusEnv, game="IteratedTwoThirdsAverage-v0")
kuhn_poker = partial(VersusEnv, game="KuhnPoker-v0")
liars_dice = partial(VersusEnv, game="LiarsDice-v0")
memory_game = partial(VersusEnv, game="MemoryGame-v0")
nim = partial(VersusEnv, game="Nim-v0")
othello = partial(VersusEnv, game="Othello-v0")
pig_dice = partial(VersusEnv, game="PigDice-v0")
simple_negotiation = partial(VersusEnv, game="SimpleNegotiation-v0")
simple_tak = partial(VersusEnv, game="SimpleTak-v0")
tic_tac_toe = partial(VersusEnv, game="TicTacToe-v0")
ultimate_tic_tac_toe = partial(VersusEnv, game="UltimateTicTacToe-v0")
wild_tic_tac_toe = partial(VersusEnv, game="WildTicTacToe-v0")
