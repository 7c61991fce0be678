"""Customer service with tools on a database and a simulated customer, and how reliable the policy becomes.

`tinkergym serve`, then `python examples/dialogue/train.py`. pass^k is the chance that all of k dialogues
about one case end well.
"""

import numpy as np

import tinkergym as tg
from examples.shared.demonstration import demonstration
from examples.shared.recipe import Recipe
from tinkergym.evaluation.repeated import evaluate_repeatedly

ENV = "dialogue/SupportVs-v0"  # the agent's seat, with a scripted customer
recipe = Recipe.from_command_line(__file__)
train = recipe.settings("train", needs=["environment"])
repeat = recipe.settings("repeat", needs=["samples", "env_kwargs"])


def demonstrations(count):
    """Yield dialogues of an imperfect agent that mixes correct and random actions."""
    env, rng = tg.make(ENV, **repeat["env_kwargs"]).unwrapped, np.random.default_rng(recipe.seed)

    def act(_):
        return env.gold_action() if rng.random() < 0.9 else str(rng.choice(env.legal_actions()))

    for seed in range(count):
        yield demonstration(env, act, seed=seed)


def pass_hat(policy):
    """Return pass^1, pass^2, ... with their intervals, from several dialogues about each case."""
    # Other seeds than those of training and of its evaluations; there are only 896 cases.
    scores = evaluate_repeatedly(policy, ENV, **repeat | {"seed": 2**31 + 10_000})
    found = [scores.pass_hat(k) for k in range(1, repeat["samples"] + 1)]
    return {str(one.k): [round(one.mean, 3), round(one.low, 3), round(one.high, 3)] for one in found if one}


with tg.Client() as client:
    job = client.train(train.pop("environment"), **train, **recipe.imitate(client, demonstrations))
    recipe.watch(job)
    before, after = (pass_hat(job.policy(version, temperature=1.0)) for version in (0, None))
    recipe.report(job, metric="env/looked", pass_hat={"before": before, "after": after})
