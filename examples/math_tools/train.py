"""Problems with a calculator: first shown how to write calls, then rewarded only for right answers.

`tinkergym serve`, then `python examples/math_tools/train.py`.
"""

import numpy as np

import tinkergym as tg
from examples.shared.recipe import Recipe
from tinkergym.tool_calls.call import ToolCall
from tinkergym.tools import render_calls

ENV = "math/WordProblemsWithTools-v0"
recipe = Recipe.from_command_line(__file__)
train = recipe.settings("train")


def demonstrations(count):
    """Yield episodes of an imperfect scripted player: a guess, a call, or a malformed call."""
    env, rng = tg.make(ENV, **train.get("env_kwargs", {})), np.random.default_rng(recipe.seed)
    prompt = train.get("system_prompt", env.metadata["system_prompt"])
    for seed in range(count):
        question, _ = env.reset(seed=seed)
        messages = [
            {"role": "system", "content": prompt},
            {"role": "user", "content": question},
        ]
        kind = rng.choice(["guess", "call", "malformed"], p=[0.4, 0.4, 0.2])
        if kind != "guess":
            call = render_calls([ToolCall("calculator", {"expression": question.rstrip("=")})], "hermes")
            call = call if kind == "call" else call.replace('"}}', '"}')
            messages += [{"role": "assistant", "content": call}]
            messages += [{"role": "user", "content": env.step(call)[0]}]
        gold = env.get_wrapper_attr("gold_action")().removeprefix("#### ")
        answer = gold if kind == "call" else str(rng.integers(100))
        yield {"messages": [*messages, {"role": "assistant", "content": answer}]}


with tg.Client() as client:
    job = client.train(ENV, **train, **recipe.imitate(client, demonstrations))
    recipe.watch(job)
    recipe.report(job, metric=["env/correct", "env/tool_calls", "env/malformed_tool_calls"])
