"""Tasks of data-dependent environments. One `TaskSource` for each storage format."""

from tinkergym.tasks.generator import GeneratorTasks
from tinkergym.tasks.hugging_face import HuggingFaceTasks
from tinkergym.tasks.jsonl import JsonlTasks
from tinkergym.tasks.named import named_tasks
from tinkergym.tasks.parquet import ParquetTasks
from tinkergym.tasks.sequence import SequenceTasks
from tinkergym.tasks.source import Task, TaskSource

__all__ = [
    "GeneratorTasks",
    "HuggingFaceTasks",
    "JsonlTasks",
    "ParquetTasks",
    "SequenceTasks",
    "Task",
    "TaskSource",
    "named_tasks",
]
