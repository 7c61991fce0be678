"""The games as environments: against an opponent, or alone."""

from functools import partial

from tinkergym.registration.games import make_against_opponent

guess_number = partial(make_against_opponent, "games/GuessNumber-v0")
nim = partial(make_against_opponent, "games/Nim-v0")
rock_paper_scissors = partial(make_against_opponent, "games/RockPaperScissors-v0")
