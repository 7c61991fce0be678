"""Tools of one seat of a game, by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue

from tinkergym.schema.model import Choice

MOST_TOOLS = 64

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", max_length=300)]
"""`module:name`."""


class NamedTool(Choice):
    """A tool, or what makes one or several, by its name; with arguments for what makes them."""

    tool: ToolName
    arguments: dict[str, JsonValue] = {}


class SeatTools(Choice):
    """What the policy of a seat may call before it moves; its opponents do not see that it does.

    Example:
        >>> tg.Train(tools=["tinkergym.tools:PythonTool"])
        >>> tg.Train(tools={"tools": ["my_pack.tools:lookup"], "max_calls": 3})
    """

    tools: list[NamedTool] = Field(min_length=1, max_length=MOST_TOOLS)
    """Of an installed pack, or of `tinkergym.tools`; where a client plays, of any module there."""
    syntax: Literal["hermes", "xml", "json"] = "hermes"
    """How the model writes calls."""
    max_calls: int | None = Field(None, ge=1)
    """In one game; None leaves it to the limits of the episode. Each call is a turn."""
    timeout_seconds: float | None = Field(None, gt=0)
    """Of a call of a function."""

    @classmethod
    def read(cls, given: Any) -> Any:
        """Return a list of names as settings; everything else as it is."""
        if isinstance(given, list | tuple):
            given = {"tools": given}
        if not isinstance(given, dict) or not isinstance(given.get("tools"), list | tuple):
            return given
        named = [{"tool": one} if isinstance(one, str) else one for one in given["tools"]]
        return {**given, "tools": named}

    @property
    def sources(self) -> list[Any]:
        """The tools as `tinkergym.tools.collection.named_tools` takes them."""
        return [{"tool": one.tool, **one.arguments} if one.arguments else one.tool for one in self.tools]

    @property
    def modules(self) -> set[str]:
        """The modules that the tools are in."""
        return {one.tool.partition(":")[0] for one in self.tools}
