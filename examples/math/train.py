"""Problems from a dataset in the layout of GSM8K or MATH; all parameters of the model are trained.

`tinkergym serve`, then `python examples/math/train.py`.
"""

import tinkergym as tg
from examples.shared.recipe import Recipe

recipe = Recipe.from_command_line(__file__)
with tg.Client() as client:
    job = client.train("math/WordProblems-v0", **recipe.settings("train"))
    recipe.watch(job)
    recipe.report(job)
