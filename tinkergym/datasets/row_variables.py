"""Template variables of a dataset's rows, under our name or that of TRL, and the template's date."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinkergym.basics.user_json import read_json
from tinkergym.datasets.conversations import RowFaultError
from tinkergym.schema.chat_templates import day_fault, variables_fault

DATE = "template_date"
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


def date_of(row: Any) -> tuple[Any, str]:
    """Return a row without the date that the chat template writes, and that date; empty if it has none.

    Raises:
        RowFaultError: It is not a date.
    """
    if not isinstance(row, Mapping) or DATE not in row:
        return row, ""
    day = row[DATE] or ""
    if fault := day_fault(day):
        raise RowFaultError(f"{DATE}: {fault.reason}; {fault.hint}")
    if day and "text" in row:
        raise RowFaultError(f"text: no chat template renders it, so {DATE} has no effect")
    return {key: value for key, value in row.items() if key != DATE}, day
