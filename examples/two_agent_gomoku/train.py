"""Two-agent gomoku: black and white are two policies that learn by playing each other.

`tinkergym serve`, then `python examples/two_agent_gomoku/train.py`.
"""

import tinkergym as tg
from examples.shared.recipe import Recipe

recipe = Recipe.from_command_line(__file__)
train = recipe.settings("train", needs=["crossplay_pairs"])
pairs = train.pop("crossplay_pairs")
with tg.Client() as client:
    job = client.train("board/Gomoku-v0", **train)
    recipe.watch(job)
    # Starts, newest versions and the random player against each other, seats swapped.
    games = job.crossplay(pairs=pairs)
    print(games)
    recipe.report(job, crossplay=games.to_json())
