"""Results as Parquet: made from the JSON lines, a portion at a time."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

from tinkergym.basics.extras import import_extra
from tinkergym.errors import InvalidRequestError

_PORTION = 4096
"""Lines per row group."""
_TYPES = {
    "text": "string",
    "finish_reason": "string",
    "tool_calls": "string",
    "error": "string",
    "token_ids": "list<int32>",
    "logprobs": "list<double>",
}


def require_parquet() -> tuple[Any, Any]:
    """Return `pyarrow` and `pyarrow.parquet`.

    Raises:
        InvalidRequestError: They are not installed.
    """
    pa, parquet = (
        import_extra(
            module, "Parquet files need the package pyarrow", extra="parquet", error=InvalidRequestError
        )
        for module in ("pyarrow", "pyarrow.parquet")
    )
    return pa, parquet


def write_parquet(lines: Path, path: Path) -> None:
    """Write the results in `lines` to `path`, which is then there completely or not at all.

    Columns have one type each. What holds objects, lists or values of several kinds is JSON in strings.
    """
    pa, parquet = require_parquet()
    types = _types_in(lines)
    schema = pa.schema([(name, _arrow_type(pa, kind)) for name, kind in types.items()])
    part = path.with_name(f".{path.name}.part")
    try:
        with parquet.ParquetWriter(part, schema) as writer, lines.open("rb") as file:
            while portion := [json.loads(raw) for raw in islice(file, _PORTION)]:
                columns = {
                    name: [_value(line.get(name), kind) for line in portion] for name, kind in types.items()
                }
                writer.write_table(pa.table(columns, schema=schema))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _types_in(lines: Path) -> dict[str, str]:
    """Return the type of each column, in the order of their first occurrence."""
    seen: dict[str, set[str]] = {}
    with lines.open("rb") as file:
        for raw in file:
            for name, value in json.loads(raw).items():
                kinds = seen.setdefault(name, set())
                if value is not None:
                    kinds.add(_kind(value))
    return {name: _TYPES.get(name) or _common(kinds) for name, kinds in seen.items()}


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64" if -(2**63) <= value < 2**63 else "json"
    return {float: "double", str: "string"}.get(type(value), "json")


def _common(kinds: set[str]) -> str:
    if len(kinds) == 1:
        return "json" if "json" in kinds else next(iter(kinds))
    return "double" if kinds == {"int64", "double"} else "json" if kinds else "string"


def _arrow_type(pa: Any, kind: str) -> Any:
    lists = {"list<int32>": lambda: pa.list_(pa.int32()), "list<double>": lambda: pa.list_(pa.float64())}
    if kind in lists:
        return lists[kind]()
    return pa.string() if kind == "json" else pa.type_for_alias(kind)


def _value(value: Any, kind: str) -> Any:
    if kind == "double" and isinstance(value, int):
        return float(value)  # Arrow refuses those that a double cannot hold.
    if value is None or kind not in ("json", "string") or (kind == "string" and isinstance(value, str)):
        return value
    return json.dumps(value, ensure_ascii=False)
