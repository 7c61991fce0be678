"""Trackers by name, for `report_to=[...]` and `--report-to`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tinkergym.errors import InvalidRequestError
from tinkergym.reporting.callbacks import Callback
from tinkergym.reporting.file_trackers import CsvTracker, JsonlTracker
from tinkergym.reporting.mlflow_tracker import MlflowTracker
from tinkergym.reporting.row_trackers import TrackioTracker, WandbTracker
from tinkergym.reporting.tensorboard_tracker import TensorBoardTracker

ReportTo = str | Callback | Iterable[str | Callback]
"""A tracker's name or a callback, or several."""

TRACKERS: dict[str, Callable[[], Callback]] = {
    "csv": CsvTracker,
    "jsonl": JsonlTracker,
    "mlflow": MlflowTracker,
    "tensorboard": TensorBoardTracker,
    "trackio": TrackioTracker,
    "wandb": WandbTracker,
}
"""Constructors of the trackers by name."""


def callbacks_of(report_to: ReportTo) -> list[Callback]:
    """Return callbacks for names and for callbacks themselves.

    Raises:
        InvalidRequestError: A name is unknown, or an object lacks the methods of `Callback`.
        MissingExtraError: A tracker's package is not installed.
    """
    if isinstance(report_to, str | Callback) or not isinstance(report_to, Iterable):
        return [_callback(report_to)]
    return [_callback(one) for one in report_to]


def _callback(one: str | Callback) -> Callback:
    if isinstance(one, str):
        if one not in TRACKERS:
            raise InvalidRequestError(
                f"there is no tracker {one!r:.80}",
                hint=f"there are: {', '.join(sorted(TRACKERS))}",
                field="report_to",
            )
        return TRACKERS[one]()
    if isinstance(one, type) or not isinstance(one, Callback):
        raise InvalidRequestError(
            f"{one!r:.80} does not have the methods begin, report and end",
            hint="use a tracker's name, or an object with the methods of tinkergym.reporting.Callback",
            field="report_to",
        )
    return one
