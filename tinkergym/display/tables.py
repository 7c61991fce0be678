"""Figures as a pandas table, for those who have pandas; nothing here needs it before it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

from tinkergym.errors import MissingExtraError


def frame(rows: Iterable[Mapping[str, Any]]) -> Any:
    """Return a `pandas.DataFrame` of the rows.

    Raises:
        MissingExtraError: pandas is not installed.
    """
    try:
        pandas = importlib.import_module("pandas")
    except ImportError as error:
        raise MissingExtraError(
            "to_pandas needs pandas, which is not installed here", hint="pip install pandas"
        ) from error
    return pandas.DataFrame(list(rows))


def with_metrics(row: Mapping[str, Any], metrics: Mapping[str, float]) -> dict[str, Any]:
    """Return a row that has the metrics as columns; where a name is taken, the row's own value stays."""
    return {**metrics, **row}
