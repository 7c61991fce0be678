"""Tools for policies: functions, methods of an environment, a Python sandbox, MCP servers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinkergym.tool_calls.syntax import parse_calls, render_calls
    from tinkergym.tools.definition import Tool, tool
    from tinkergym.tools.prompt import describe_tools
    from tinkergym.tools.python import PythonTool, python_tool

__all__ = ["PythonTool", "Tool", "describe_tools", "parse_calls", "python_tool", "render_calls", "tool"]

_HOMES = {
    "PythonTool": "tinkergym.tools.python",
    "Tool": "tinkergym.tools.definition",
    "describe_tools": "tinkergym.tools.prompt",
    "parse_calls": "tinkergym.tool_calls.syntax",
    "python_tool": "tinkergym.tools.python",
    "render_calls": "tinkergym.tool_calls.syntax",
    "tool": "tinkergym.tools.definition",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tinkergym.tools' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
