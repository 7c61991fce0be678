"""The games as environments: one seat, against an opponent or with a partner."""

from functools import partial

from tinkergym.registration.games import make_against_opponent

kuhn_poker = partial(make_against_opponent, "tabletop/KuhnPoker-v0")
leduc_poker = partial(make_against_opponent, "tabletop/LeducPoker-v0")
prisoners_dilemma = partial(make_against_opponent, "tabletop/PrisonersDilemma-v0")
signals = partial(make_against_opponent, "tabletop/Signals-v0")
liars_dice = partial(make_against_opponent, "tabletop/LiarsDice-v0")
deal = partial(make_against_opponent, "tabletop/Deal-v0")
