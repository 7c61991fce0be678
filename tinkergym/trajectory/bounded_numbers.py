"""Every number in a record or on the wire has bounds, and JSON writes it as a number.

A field states its own bounds where the service gives them a meaning. What it leaves open gets the bounds
below, so that no number overflows the database or float32.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema

LARGEST_INT = 2**63 - 1
"""Of the database."""

LARGEST_FLOAT = 1e38
"""The largest float32, in which models compute, is 3.4e38."""

_LEFT_ALONE = {"metadata", "default", "serialization", "keys_schema"}
"""Parts of pydantic's schemas that hold no number of a document; JSON writes keys as strings."""


class BoundedNumbers(BaseModel):
    """Bounds all numbers of a model and, in JSON, rejects strings and booleans as numbers."""

    largest_int: ClassVar[int] = LARGEST_INT
    largest_float: ClassVar[float] = LARGEST_FLOAT
    least_positive: ClassVar[float] = 0.0
    """The smallest value of a number that must be above zero."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Add the bounds to the schema that the fields describe."""
        schema = handler(source)
        cls._bound(schema)
        return schema

    @classmethod
    def _bound(cls, node: Any) -> None:
        if isinstance(node, list | tuple):
            for part in node:
                cls._bound(part)
        if not isinstance(node, dict):
            return
        kind = node.get("type")  # that of a table of fields is the field of that name
        if kind == "model" and node["cls"] is not cls and issubclass(node["cls"], BoundedNumbers):
            return  # It has its own.
        if kind == "json-or-python":
            return  # Done, for a model that is a part of this one.
        if kind == "int" or kind == "float":  # noqa: PLR1714 - it may be a table
            cls._bound_number(node)
            return
        for name, part in node.items():
            if name not in _LEFT_ALONE:
                cls._bound(part)

    @classmethod
    def _bound_number(cls, node: dict[str, Any]) -> None:
        largest: float = cls.largest_int if node["type"] == "int" else cls.largest_float
        if node.get("gt") == 0 and node["type"] == "float" and cls.least_positive:
            node["ge"] = cls.least_positive
            del node["gt"]
        if not {"ge", "gt"} & set(node):
            node["ge"] = -largest
        if not {"le", "lt"} & set(node):
            node["le"] = largest
        strict, lax = {**node, "strict": True}, dict(node)
        node.clear()
        node.update(type="json-or-python", json_schema=strict, python_schema=lax)


class Record(BoundedNumbers):
    """A frozen record that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")
