"""Problems about pictures with a calculator: first shown how calls are written, then rewarded.

`tinkergym serve`, then `python examples/geometry_tools/train.py`. With `--variant swapped`, pictures are
shown with other problems than their own: a control, in which there is nothing to learn.
"""

import numpy as np

import tinkergym as tg
from examples.shared.recipe import Recipe
from tinkergym.tool_calls.call import ToolCall
from tinkergym.tools import render_calls

ENV = "geometry/ProblemsWithTools-v0"
recipe = Recipe.from_command_line(__file__)
train = recipe.settings("train")


def asked(observation):
    """Return what the environment shows, as a message of a dataset."""
    images = [{"type": "image", "image": image} for image in observation["images"]]
    return {"role": "user", "content": [*images, {"type": "text", "text": observation["text"]}]}


def demonstrations(count):
    """Yield episodes of an imperfect scripted player: a guess, a call, or a malformed call."""
    env = tg.make(ENV, **train.get("env_kwargs", {}) | {"data": "drawn", "swapped": False})
    prompt = train.get("system_prompt", env.metadata["system_prompt"])
    tasks, rng = env.get_wrapper_attr("tasks"), np.random.default_rng(recipe.seed)
    for number in range(count):
        index = number % len(tasks)
        question, _ = env.reset(seed=number, options={"task_index": index})
        messages = [{"role": "system", "content": prompt}, asked(question)]
        kind = rng.choice(["guess", "call", "malformed"], p=[0.4, 0.4, 0.2])
        if kind != "guess":
            call = render_calls(
                [ToolCall("calculator", {"expression": tasks[index]["expression"]})], "hermes"
            )
            call = call if kind == "call" else call.replace('"}}', '"}')
            messages += [{"role": "assistant", "content": call}, asked(env.step(call)[0])]
        answer = tasks[index]["answer"] if kind == "call" else str(rng.integers(1, 41))
        yield {"messages": [*messages, {"role": "assistant", "content": answer}]}


with tg.Client() as client:
    job = client.train(ENV, **train, **recipe.imitate(client, demonstrations))
    recipe.watch(job)
    recipe.report(job, metric=["env/correct", "env/tool_calls", "env/malformed_tool_calls"])
