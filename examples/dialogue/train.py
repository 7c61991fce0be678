"""Customer service with tools on a database and a simulated customer, and how reliable the policy becomes.

`tinkergym serve`, then `python examples/dialogue/train.py`. pass^k is the chance that all of k dialogues
about one case end well.
"""

import numpy as np

import tinkergym as tg
from tinkergym.evaluation.repeated import evaluate_repeatedly
from tinkergym.reporting.demonstration import demonstration
from tinkergym.reporting.recipe import Recipe

ENV = "dialogue/SupportVs-v0"  # the agent's seat, with a scripted customer
recipe = Recipe.from_command_line(__file__)


def demonstrations(count, env_kwargs, *, rng):
    """Yield dialogues of an imperfect agent that mixes correct and random actions."""
    env = tg.make(ENV, **env_kwargs).unwrapped

    def act(_):
        return env.gold_action() if rng.random() < 0.7 else str(rng.choice(env.legal_actions()))

    for seed in range(count):
        yield demonstration(env, act, seed=seed)


def pass_hat(policy, repeat):
    """Return pass^1, pass^2, ... with their intervals, from several dialogues about each case."""
    # Other cases than those of training and of its evaluations.
    scores = evaluate_repeatedly(policy, ENV, **repeat | {"seed": 2**31 + 10_000})
    found = [scores.pass_hat(k) for k in range(1, repeat["samples"] + 1)]
    return {str(one.k): [round(one.mean, 3), round(one.low, 3), round(one.high, 3)] for one in found if one}


with tg.Client() as client:
    show, train, repeat = (recipe.settings(stage) for stage in ("show", "train", "repeat"))
    if (episodes := show.pop("episodes")) > 0:
        rng = np.random.default_rng(recipe.seed)
        rows = list(demonstrations(episodes, repeat["env_kwargs"], rng=rng))
        shown = client.sft(tg.tasks.SequenceTasks(rows), **show)
        recipe.watch(shown)
        train["initial_policy"] = shown.id
    job = client.train(train.pop("environment"), **train)
    recipe.watch(job)
    before, after = (pass_hat(job.policy(version, temperature=1.0), repeat) for version in (0, None))
    recipe.report(job, metric="env/looked", pass_hat={"before": before, "after": after})
