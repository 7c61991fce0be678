"""Two games of TextArena in one job, each in a separate process.

`tinkergym serve`, then `python examples/textarena/train.py`. A model that has never seen the games is first
shown legal moves; an instruction-following model does not need that (`episodes = 0`).
"""

import random

import tinkergym as tg
from examples.shared.demonstration import demonstration
from examples.shared.recipe import Recipe

recipe = Recipe.from_command_line(__file__)
train = recipe.settings("train", needs=["games"])
games = train.pop("games")


def legal_episodes(count):
    """Yield episodes in which every move is legal and random."""
    draw = random.Random(recipe.seed)
    for name, _, *settings in games:
        env = tg.make(name, **dict(*settings))
        legal = env.get_wrapper_attr("legal_actions")
        for seed in range(count):
            yield demonstration(env, lambda _, legal=legal: draw.choice(legal()), seed=seed)


def main():
    """Run the recipe; the processes of the environments import this module again."""
    with tg.Client() as client:
        job = client.train(games, **train, **recipe.imitate(client, legal_episodes))
        recipe.watch(job)
        recipe.report(job)


if __name__ == "__main__":
    main()
