"""ALFWorld's household tasks in text. The laptop's are small games that are made here, not the benchmark's.

`tinkergym serve`, then `python examples/alfworld/train.py`.
"""

import os
import random
from pathlib import Path

from tinkergym_alfworld.make_games import Wanted, made_games
from tinkergym_alfworld.searcher import Searcher

import tinkergym as tg
from examples.shared.demonstration import demonstration
from examples.shared.recipe import Recipe

ENV = "alfworld/Household-v0"
recipe = Recipe.from_command_line(__file__)
train = recipe.settings("train")

games = recipe.settings("games", needs=["folder"])
if folder := games.pop("folder"):
    games = {name: tuple(value) if isinstance(value, list) else value for name, value in games.items()}
    made = made_games(Path(folder).expanduser(), Wanted(**{**games, "seed": 0}))
    os.environ["ALFWORLD_DATA"] = str(made)


def demonstrations(count, mistakes):
    """Yield episodes of a player that searches the room and errs now and then."""
    env = tg.make(ENV, **train.get("env_kwargs", {}))
    player = Searcher(random.Random(recipe.seed), mistakes=mistakes)
    for seed in range(count):
        yield demonstration(
            env,
            lambda _: player.act(env.get_wrapper_attr("legal_actions")()),
            seed=seed,
            begin=player.reset,
        )
    env.close()


def main():
    """Run the recipe; the processes of the environments import this module again."""
    with tg.Client() as client:
        job = client.train(ENV, **train, **recipe.imitate(client, demonstrations, own=["mistakes"]))
        recipe.watch(job)
        recipe.report(job, metric=["env/success", "env/unknown_commands"])


if __name__ == "__main__":
    main()
