"""Problems about pictures with a calculator: first shown how calls are written, then rewarded.

`tinkergym serve`, then `python examples/geometry_tools/train.py`. With `--variant swapped`, pictures are
shown with other problems than their own: a control, in which there is nothing to learn.
"""

import numpy as np

import tinkergym as tg
from tinkergym.reporting.recipe import Recipe
from tinkergym.tools import render_calls
from tinkergym.tools.syntax import ToolCall

ENV = "geometry/ProblemsWithTools-v0"
recipe = Recipe.from_command_line(__file__)
train = recipe.settings("train")


def asked(observation):
    """Return what the environment shows, as a message of a dataset."""
    images = [{"type": "image", "image": image} for image in observation["images"]]
    return {"role": "user", "content": [*images, {"type": "text", "text": observation["text"]}]}


def demonstrations(count, *, rng):
    """Yield episodes of an imperfect scripted player: a guess, a call, or a malformed call."""
    env = tg.make(ENV, **train["env_kwargs"] | {"data": "drawn", "swapped": False})
    tasks = env.get_wrapper_attr("tasks")
    for number in range(count):
        index = number % len(tasks)
        question, _ = env.reset(seed=number, options={"task_index": index})
        messages = [{"role": "system", "content": train["system_prompt"]}, asked(question)]
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
    show = recipe.settings("show")
    if (episodes := show.pop("episodes")) > 0:
        rows = list(demonstrations(episodes, rng=np.random.default_rng(recipe.seed)))
        shown = client.sft(tg.tasks.SequenceTasks(rows), **show)
        recipe.watch(shown)
        train["initial_policy"] = shown.id
    job = client.train(ENV, **train)
    recipe.watch(job)
    recipe.report(job, metric="env/malformed_tool_calls")
