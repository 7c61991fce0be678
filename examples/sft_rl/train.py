"""Demonstrations, then reinforcement learning from that checkpoint, then sampling through the API.

`tinkergym serve`, then `python examples/sft_rl/train.py`.
"""

import tinkergym as tg
from examples.shared.demonstration import demonstration
from examples.shared.recipe import Recipe

ENV = "board/TicTacToeVs-v0"
recipe = Recipe.from_command_line(__file__)
train = recipe.settings("train")


def demonstrations(count, player):
    """Yield the messages of episodes played by a scripted policy."""
    env = tg.make(ENV, **train.get("env_kwargs", {}))
    for seed in range(count):
        yield demonstration(env, lambda _: player(env), seed=seed)


with tg.Client() as client:
    settings = recipe.settings("sft", needs=["episodes"])
    rows = list(demonstrations(settings.pop("episodes"), lambda env: env.get_wrapper_attr("gold_action")()))
    imitated = client.sft(tg.tasks.SequenceTasks(rows), **settings)
    recipe.watch(imitated)

    job = client.train(ENV, initial_policy=imitated.id, **train)
    recipe.watch(job)

    policy = job.policy(temperature=0)
    first_move = policy.act(tg.make(ENV, **train.get("env_kwargs", {})).reset(seed=7)[0])
    recipe.report(job, metric="env/won", imitated=imitated.id, first_move=first_move)
