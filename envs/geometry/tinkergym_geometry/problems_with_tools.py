"""Problems about pictures with a calculator at hand."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from tinkergym.tool_calls.syntax import Syntax
from tinkergym.wrappers.tool_calling import ToolCalling
from tinkergym_geometry.figures import SIDE
from tinkergym_geometry.problems import DRAWN, ProblemsEnv


def make(
    data: str = DRAWN,
    split: str = "train",
    *,
    config: str | None = None,
    side: int = SIDE,
    swapped: bool = False,
    syntax: Syntax = "hermes",
    max_calls: int = 4,
    instructions: bool = True,
    render_mode: str | None = None,
) -> gym.Env[Any, str]:
    """Return the environment with its tool.

    Args:
        data: `drawn`, which comes with the pack, or as in `tinkergym.tasks.named_tasks`.
        split: Split of the dataset.
        config: The hub's configuration name.
        side: Height and width in pixels to which pictures are fitted, with white around them.
        swapped: Show the pictures of another problem, as a control: then there is nothing to learn.
        syntax: How the model writes calls: `hermes`, `xml` or `json`.
        max_calls: Maximum calls of the calculator per episode.
        instructions: Explain in the system prompt how to mark the final answer.
        render_mode: Must be None; there is nothing to render.

    Raises:
        InvalidRequestError: There is no such dataset or split.
    """
    env = ProblemsEnv(
        data,
        split,
        config=config,
        side=side,
        swapped=swapped,
        instructions=instructions,
        render_mode=render_mode,
    )
    return ToolCalling(env, ["tinkergym.tools.calculator:calculator"], syntax, max_calls=max_calls)
