"""Tasks on an Android device. The laptop's device is a fake phone, which has AndroidWorld's interface.

`tinkergym serve`, then `python examples/androidworld/train.py`.
"""

import random

import tinkergym as tg
from examples.shared.demonstration import demonstration
from examples.shared.recipe import Recipe
from tinkergym.serving.remote_env import RemoteEnv

recipe = Recipe.from_command_line(__file__)
train = recipe.settings("train", needs=["environment"])
env_id = train.pop("environment")
# An id of this script: with tinkergym/Remote-v0, evaluations always use the server of the training tasks.
tg.register("served/Phone-v0", RemoteEnv)


def demonstrations(count, mistakes):
    """Yield episodes of a player that goes the shortest way, until it errs or gives up."""
    env = tg.make(env_id, **train.get("env_kwargs", {}))
    draw = random.Random(recipe.seed)

    def act(_):
        action = env.get_wrapper_attr("gold_action")()
        if action is None or draw.random() < mistakes:
            action = draw.choice(env.get_wrapper_attr("legal_actions")())
        return action

    for seed in range(count):
        yield demonstration(env, act, seed=seed)


with tg.Client() as client:
    job = client.train(env_id, **train, **recipe.imitate(client, demonstrations, own=["mistakes"]))
    recipe.watch(job)
    recipe.report(job, metric=["env/success", "env/malformed_actions"], environment=env_id)
