"""Tools of one seat of a game, by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue

from tinkergym.schema.model import Choice

MOST_TOOLS = 64

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", max_length=300)]
"""`module:name`."""


class NamedTool(Choice):
    """A tool, or a function that creates one or several, by its name; with arguments for such a function."""

    tool: ToolName
    arguments: dict[str, JsonValue] = {}


class SeatTools(Choice):
    """Tools that the policy of a seat may call before it moves, invisibly to its opponents.

    Example:
        >>> tg.Train(tools=["tinkergym.tools:PythonTool"])
        >>> tg.Train(tools={"tools": ["my_pack.tools:lookup"], "max_calls": 3})
    """

    tools: list[NamedTool] = Field(min_length=1, max_length=MOST_TOOLS)
    """From an installed pack, or from `tinkergym.tools`; if a client plays, from any module there."""
    syntax: Literal["hermes", "xml", "json"] = "hermes"
    """The syntax of the model's calls."""
    max_calls: int | None = Field(None, ge=1)
    """Per game; None leaves it to the episode's limits. Each call is a turn."""
    timeout_seconds: float | None = Field(None, gt=0)
    """Time limit for a function call."""
    parallel_calls: int = Field(1, ge=1, le=MOST_TOOLS)
    """How many independent calls of one answer run at the same time."""

    @classmethod
    def read(cls, given: Any) -> Any:
        """Convert a list of names to settings; return everything else unchanged."""
        if isinstance(given, list | tuple):
            given = {"tools": given}
        if not isinstance(given, dict) or not isinstance(given.get("tools"), list | tuple):
            return given
        named = [{"tool": one} if isinstance(one, str) else one for one in given["tools"]]
        return {**given, "tools": named}

    @property
    def sources(self) -> list[Any]:
        """The tools in the form of `tinkergym.tools.collection.named_tools`."""
        return [{"tool": one.tool, **one.arguments} if one.arguments else one.tool for one in self.tools]

    @property
    def modules(self) -> set[str]:
        """The tools' modules."""
        return {one.tool.partition(":")[0] for one in self.tools}
