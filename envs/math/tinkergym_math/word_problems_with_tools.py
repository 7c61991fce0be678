"""Problems of a dataset with a calculator and Python at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from tinkergym.errors import InvalidRequestError
from tinkergym.tools.syntax import Syntax
from tinkergym.wrappers.tool_calling import ToolCalling
from tinkergym_math.word_problems import Layout, WordProblemsEnv

_TOOLS: dict[str, Any] = {
    "calculator": "tinkergym_math.calculator:calculator",
    "python": {"tool": "tinkergym.tools:PythonTool"},
}


def make(
    data: str = "arithmetic",
    layout: Layout = "gsm8k",
    split: str = "train",
    *,
    config: str | None = None,
    tools: Sequence[str] = ("calculator", "python"),
    syntax: Syntax = "hermes",
    max_calls: int = 4,
    instructions: bool = True,
    render_mode: str | None = None,
) -> gym.Env[Any, str]:
    """Return the environment with its tools.

    Args:
        data: As for `math/WordProblems-v0`, and so are the next three.
        layout: `gsm8k` or `math`.
        split: Of the dataset.
        config: The hub's configuration name.
        tools: Which of `calculator` and `python`.
        syntax: How the model writes calls: `hermes`, `xml` or `json`.
        max_calls: Calls of tools in an episode.
        instructions: Say in the system prompt how the final answer is marked.
        render_mode: None; there is nothing to see.

    Raises:
        InvalidRequestError: There is no such tool, dataset or split.
    """
    unknown = sorted(set(tools) - set(_TOOLS))
    if unknown or not tools:
        raise InvalidRequestError(
            f"must name tools out of {', '.join(_TOOLS)}" + (f", not {unknown[0]!r}" if unknown else ""),
            field="tools",
        )
    env = WordProblemsEnv(
        data, layout, split, config=config, instructions=instructions, render_mode=render_mode
    )
    return ToolCalling(env, [_TOOLS[name] for name in tools], syntax, max_calls=max_calls)
