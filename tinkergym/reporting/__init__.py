"""Callbacks and trackers for a job's train steps, and its report."""

from tinkergym.reporting.callbacks import Callback, NoteTaker
from tinkergym.reporting.file_trackers import CsvTracker, JsonlTracker
from tinkergym.reporting.mlflow_tracker import MlflowTracker
from tinkergym.reporting.notes import Note
from tinkergym.reporting.points import Point
from tinkergym.reporting.row_trackers import TrackioTracker, WandbTracker
from tinkergym.reporting.tensorboard_tracker import TensorBoardTracker
from tinkergym.reporting.trackers import TRACKERS

__all__ = [
    "TRACKERS",
    "Callback",
    "CsvTracker",
    "JsonlTracker",
    "MlflowTracker",
    "Note",
    "NoteTaker",
    "Point",
    "TensorBoardTracker",
    "TrackioTracker",
    "WandbTracker",
]
