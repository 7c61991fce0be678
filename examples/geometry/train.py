"""Problems about pictures, in the record format of geometry3k, for a vision-language model.

`tinkergym serve`, then `python examples/geometry/train.py`. With `--variant swapped`, pictures are
shown with other problems than their own: a control, in which there is nothing to learn.
"""

import tinkergym as tg
from examples.shared.recipe import Recipe

recipe = Recipe.from_command_line(__file__)
with tg.Client() as client:
    job = client.train("geometry/Problems-v0", **recipe.settings("train"))
    recipe.watch(job)
    recipe.report(job, metric="env/correct")
