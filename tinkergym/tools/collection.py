"""The tools of an environment: its own methods, and those given as objects or by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import gymnasium as gym

from tinkergym.errors import InvalidToolError
from tinkergym.tools.definition import FunctionTool, Tool, named

ToolSource = Tool | Callable[..., Any] | str | Mapping[str, Any]
"""A tool; a function to make into one; the name of either as `module:name`; or the name of a factory of one
or several, with its arguments: `{"tool": "tinkergym.tools:PythonTool", "wall_seconds": 2}`."""


def methods_of(env: gym.Env[Any, Any]) -> list[Tool]:
    """Return the methods of an environment, and of the wrappers around it, that are marked as tools."""
    found: list[Tool] = []
    layer: Any = env
    while layer is not None:
        kind = type(layer)
        for name in dir(kind):
            value = inspect.getattr_static(kind, name)
            if isinstance(value, FunctionTool):
                found.append(getattr(layer, name))
        layer = layer.env if isinstance(layer, gym.Wrapper) else None
    return found


def named_tools(sources: Iterable[ToolSource]) -> tuple[list[Tool], list[Tool]]:
    """Return the tools for the sources, and those among them that were created here and must be closed.

    Raises:
        InvalidToolError: A source is not a tool.
    """
    tools: list[Tool] = []
    made: list[Tool] = []
    for source in sources:
        found = list(_found(source))
        tools += found
        if not isinstance(source, Tool):
            made += [tool for tool in found if not isinstance(tool, FunctionTool)]
    return tools, made


def by_name(tools: Iterable[Tool]) -> dict[str, Tool]:
    """Return tools by their names.

    Raises:
        InvalidToolError: There is none, or two have the same name.
    """
    found: dict[str, Tool] = {}
    for tool in tools:
        if tool.name in found:
            hint = "rename one: @tool(name=...)"
            raise InvalidToolError(f"two tools have the name {tool.name}", hint=hint, field="tools")
        found[tool.name] = tool
    if not found:
        hint = "pass tools=[...], or mark methods of the environment with @tool"
        raise InvalidToolError("there are no tools", hint=hint, field="tools")
    return found


def recorded(sources: Iterable[ToolSource]) -> list[Any]:
    """Return the sources for an environment's spec, as JSON if they have a name."""
    return [source.recorded() if isinstance(source, Tool) else source for source in sources]


def _found(source: ToolSource) -> Iterator[Tool]:
    value: Any = source
    settings: dict[str, Any] = {}
    if isinstance(source, Mapping):
        settings = dict(source)
        value = settings.pop("tool", None)
        if not isinstance(value, str):
            raise InvalidToolError(
                "a mapping needs the name of the tool's factory under 'tool'", field="tools"
            )
    if isinstance(value, str):
        value = named(value)
        if isinstance(source, Mapping) or not isinstance(value, Tool):
            if not callable(value):
                raise InvalidToolError(f"{source!r} is not a tool and does not create one", field="tools")
            value = value(**settings) if isinstance(value, type) or settings or _makes_tools(value) else value
    if callable(value) and not isinstance(value, Tool):
        value = FunctionTool(value)
    for tool in value if isinstance(value, list | tuple) else [value]:
        if not isinstance(tool, Tool):
            raise InvalidToolError(f"{type(tool).__name__} is not a tool", hint="use @tool", field="tools")
        if isinstance(tool, FunctionTool) and tool.unbound:
            hint = "leave it out; methods of the environment are found automatically"
            raise InvalidToolError(
                f"{tool.name} is a method without its environment", hint=hint, field="tools"
            )
        yield tool


def _makes_tools(function: Callable[..., Any]) -> bool:
    """Whether a function without arguments is annotated as returning tools."""
    return "Tool" in str(inspect.signature(function).return_annotation)
