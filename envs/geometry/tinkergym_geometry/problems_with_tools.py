"""Problems about pictures with a calculator at hand."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from tinkergym.tools.syntax import Syntax
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
        data: As for `geometry/Problems-v0`, and so are the next four.
        split: Of the dataset.
        config: The hub's configuration name.
        side: Height and width of the pictures.
        swapped: Show the pictures of another problem.
        syntax: How the model writes calls: `hermes`, `xml` or `json`.
        max_calls: Calls of the calculator in an episode.
        instructions: Say in the system prompt how the final answer is marked.
        render_mode: None.

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
