"""Tools for policies: functions, methods of an environment, a Python sandbox, MCP servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinkergym.basics.extras import late_names

if TYPE_CHECKING:
    from tinkergym.tool_calls.syntax import parse_calls, render_calls
    from tinkergym.tools.definition import Tool, tool
    from tinkergym.tools.prompt import describe_tools
    from tinkergym.tools.python import PythonTool, python_tool

__all__ = ["PythonTool", "Tool", "describe_tools", "parse_calls", "python_tool", "render_calls", "tool"]

__getattr__ = late_names(
    __name__,
    {
        "definition": "Tool tool",
        "prompt": "describe_tools",
        "python": "PythonTool python_tool",
        "tinkergym.tool_calls.syntax": "parse_calls render_calls",
    },
)
