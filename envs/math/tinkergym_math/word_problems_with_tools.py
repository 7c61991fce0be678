"""Problems of a dataset, with a calculator and Python as tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from tinkergym.errors import InvalidRequestError
from tinkergym.tool_calls.syntax import Syntax
from tinkergym.wrappers.tool_calling import ToolCalling
from tinkergym_math.word_problems import Layout, WordProblemsEnv

_TOOLS: dict[str, Any] = {
    "calculator": "tinkergym.tools.calculator:calculator",
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
        data: See `tinkergym.tasks.named_tasks`; `arithmetic` and `boxed_sums` come with the pack.
        layout: `gsm8k` or `math`.
        split: Split of the dataset.
        config: The hub's configuration name, such as `main`.
        tools: Any of `calculator` and `python`.
        syntax: How the model writes calls: `hermes`, `xml` or `json`.
        max_calls: Maximum tool calls per episode.
        instructions: Explain in the system prompt how to mark the final answer.
        render_mode: Must be None; there is nothing to render.

    Raises:
        InvalidRequestError: The tool, dataset or split does not exist.
    """
    unknown = sorted(set(tools) - set(_TOOLS))
    if unknown or not tools:
        raise InvalidRequestError(
            f"must list tools from {', '.join(_TOOLS)}" + (f", not {unknown[0]!r}" if unknown else ""),
            field="tools",
        )
    env = WordProblemsEnv(
        data, layout, split, config=config, instructions=instructions, render_mode=render_mode
    )
    return ToolCalling(env, [_TOOLS[name] for name in tools], syntax, max_calls=max_calls)
