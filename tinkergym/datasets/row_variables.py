"""Template variables of a dataset's rows, under our name or the one that TRL uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinkergym.basics.user_json import read_json
from tinkergym.datasets.conversations import RowFaultError
from tinkergym.schema.chat_templates import variables_fault

_NAMES = ("template_variables", "chat_template_kwargs")


def variables_of(row: Any) -> tuple[Any, dict[str, Any]]:
    """Return a row without its template variables, and their values.

    Those that are null are absent: Arrow gives each row the keys of all.

    Raises:
        RowFaultError: They are not an object, or JSON of one, or the row is not rendered by a template.
    """
    if not isinstance(row, Mapping) or not any(name in row for name in _NAMES):
        return row, {}
    found: dict[str, Any] = {}
    for name in _NAMES:
        given = row.get(name)
        if isinstance(given, str):
            try:
                given = read_json(given)
            except (ValueError, RecursionError) as error:
                raise RowFaultError(f"{name}: not valid JSON: {error}") from None
        if given is not None and not isinstance(given, Mapping):
            raise RowFaultError(f"{name}: must be an object, such as {{'enable_thinking': false}}")
        found |= {key: value for key, value in (given or {}).items() if value is not None}
        if fault := variables_fault(found):
            raise RowFaultError(f"{name}: {fault.reason}; {fault.hint}")
    if found and "text" in row:
        raise RowFaultError("text: no chat template renders it, so template variables have no effect")
    return {key: value for key, value in row.items() if key not in _NAMES}, found
