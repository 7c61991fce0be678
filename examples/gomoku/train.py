"""Gomoku on 5x5, four in a row, against a scripted opponent.

`tinkergym serve`, then `python examples/gomoku/train.py`.
"""

import tinkergym as tg
from examples.shared.recipe import Recipe

recipe = Recipe.from_command_line(__file__)
with tg.Client() as client:
    job = client.train("board/GomokuVs-v0", **recipe.settings("train"))
    recipe.watch(job)
    recipe.report(job, metric="env/won")
