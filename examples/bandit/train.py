"""A slot machine with eight arms: the policy finds out which of the offered arms pays best.

`tinkergym serve`, then `python examples/bandit/train.py`.
"""

import tinkergym as tg
from examples.shared.recipe import Recipe

recipe = Recipe.from_command_line(__file__)
with tg.Client() as client:
    job = client.train("bandit/Bandit-v0", **recipe.settings("train"))
    recipe.watch(job)
    # Regret: how much more often the best offered arm pays than the pulled one, on average.
    recipe.report(job, metric="env/regret")
