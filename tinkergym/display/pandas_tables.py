"""Figures as a pandas table. pandas is imported only when a table is requested."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tinkergym.basics.extras import import_extra
from tinkergym.schema.events import EpisodeEvent


def frame(rows: Iterable[Mapping[str, Any]]) -> Any:
    """Return a `pandas.DataFrame` of the rows.

    Raises:
        MissingExtraError: pandas is not installed.
    """
    return import_extra("pandas", "to_pandas needs pandas").DataFrame(list(rows))


def with_metrics(row: Mapping[str, Any], metrics: Mapping[str, float]) -> dict[str, Any]:
    """Return a row with the metrics as columns. The row's own values take precedence."""
    return {**metrics, **row}


def completion_rows(episode: EpisodeEvent) -> list[dict[str, Any]]:
    """Return a row for each completion of the episodes in the log."""
    common = {
        "step": episode.step,
        "episode_id": episode.episode_id,
        "agent": episode.agent,
        "seed": episode.seed,
        "return": episode.episode_return,
        "stop_reason": episode.stop_reason,
    }
    rows: list[dict[str, Any]] = []
    prompt = ""
    for role, text in episode.transcript:
        if role == "assistant":
            rows.append({**common, "turn": len(rows) + 1, "prompt": prompt, "completion": text})
        else:
            prompt = text
    return rows
