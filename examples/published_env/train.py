"""A published environment of verifiers or OpenEnv, trained in without a change to it.

`tinkergym serve`, then `python examples/published_env/train.py`. The laptop's model is first shown sums, most
of them wrong, in the format that the environment wants.
"""

import random
import re

import tinkergym as tg
from examples.shared.recipe import Recipe
from tinkergym.bridges.openenv import OpenEnvEnv
from tinkergym.bridges.verifiers import VerifiersEnv
from tinkergym.errors import InvalidRequestError

ENV = "published/Environment-v0"
BRIDGES = {"verifiers": VerifiersEnv, "openenv": OpenEnvEnv}
recipe = Recipe.from_command_line(__file__)
chosen = recipe.settings("environment", needs=["bridge", "kwargs"])
if chosen["bridge"] not in BRIDGES:
    raise InvalidRequestError(f"must be one of {', '.join(BRIDGES)}", field="environment.bridge")
tg.register(ENV, BRIDGES[chosen["bridge"]], kwargs=chosen["kwargs"])


def sums(count, right):
    """Yield the environment's own questions, with the right answer now and then."""
    env = tg.make(ENV)
    draw = random.Random(recipe.seed)
    prompt = env.metadata.get("system_prompt", "")
    for seed in range(count):
        question, _ = env.reset(seed=seed)
        a, sign, b = re.search(r"(-?\d+) ([+-]) (\d+)", question[-1]["content"]).groups()
        answer = int(a) + int(f"{sign}{b}") if draw.random() < right else draw.randint(-9, 18)
        yield {
            "messages": [
                {"role": "system", "content": prompt},
                *question,
                {"role": "assistant", "content": f"<answer>{answer}</answer>"},
            ]
        }
    env.close()


with tg.Client() as client:
    job = client.train(ENV, **recipe.settings("train"), **recipe.imitate(client, sums, own=["right"]))
    recipe.watch(job)
    recipe.report(job, bridge=chosen["bridge"], environment=str(chosen["kwargs"]))
