"""A dataset by name: shipped with a pack, in the operator's data folder, or on the hub.

The name may come from another tenant's job, so it cannot lead to a file outside that folder.
"""

from __future__ import annotations

import os
from pathlib import Path

from tinkergym.errors import InvalidRequestError
from tinkergym.tasks.hugging_face import HuggingFaceTasks
from tinkergym.tasks.jsonl import JsonlTasks
from tinkergym.tasks.parquet import ParquetTasks
from tinkergym.tasks.source import TaskSource

DATA_FOLDER = "TINKERGYM_DATA"
"""Environment variable: the folder with the datasets."""

ALLOW_HUB = "TINKERGYM_HUB_DATA"
"""Environment variable: `1` lets environments load datasets of the Hugging Face hub."""


def named_tasks(
    data: str, *, shipped: Path | None = None, split: str | None = None, config: str | None = None
) -> TaskSource:
    """Open a dataset.

    Args:
        data: A folder or file below `shipped` or below the folder in `TINKERGYM_DATA`: JSON lines, Parquet,
            or the output of `save_to_disk`. Otherwise the name of a dataset on the hub, such as
            `openai/gsm8k`, if `TINKERGYM_HUB_DATA=1` is set.
        shipped: The pack's own data.
        split: Which split.
        config: The hub's configuration name. In a folder, the one below it with this name; one without such
            folders has a single configuration, whatever it is called.

    Raises:
        InvalidRequestError: There is no such dataset or configuration here, or the name leads out of the
            folder.
    """
    own = os.environ.get(DATA_FOLDER, "")
    for folder in (shipped, Path(own) if own else None):
        path = _inside(folder, data) if folder is not None else None
        if path is not None:
            return _open(path, split, config)
    if data.count("/") == 1 and not data.startswith((".", "/")) and os.environ.get(ALLOW_HUB) == "1":
        return HuggingFaceTasks(data, split=split, config=config)
    raise InvalidRequestError(
        f"there is no dataset {data!r} here",
        hint=f"set {DATA_FOLDER} to the folder that holds it where the environment is played, "
        f"or {ALLOW_HUB}=1 to load datasets of the Hugging Face hub",
        field="data",
    )


def _inside(folder: Path, data: str) -> Path | None:
    """Return the path of `data` in a folder; None if there is none, or it leads out of the folder."""
    try:
        path = (folder / data).resolve(strict=True)
    # Older versions of Python raise RuntimeError for a loop of links.
    except (OSError, ValueError, RuntimeError):
        return None
    return path if path.is_relative_to(folder.resolve()) else None


def _open(path: Path, split: str | None, config: str | None) -> TaskSource:
    if path.is_file():
        return ParquetTasks(path, split=split) if path.suffix == ".parquet" else JsonlTasks(path, split=split)
    # A dataset downloaded from the hub keeps its files in a folder for each configuration, or in `data`.
    chosen = _of_config(path, config)
    for folder in (chosen, chosen / "data"):
        if any(folder.glob("*.jsonl")):
            return JsonlTasks(folder, split=split)
        if any(folder.glob("*.parquet")):
            return ParquetTasks(folder, split=split)
    return HuggingFaceTasks(chosen, split=split, config=config if chosen == path else None)


def _of_config(path: Path, config: str | None) -> Path:
    """Return the folder of a configuration: a dataset's own if it has only one.

    Raises:
        InvalidRequestError: There are several, and none of this name.
    """
    named = _inside(path, config) if config else None
    if named is not None and named.is_dir():
        return named
    configs = sorted(folder.name for folder in path.iterdir() if folder.name != "data" and _has_files(folder))
    if configs and (config or not (_has_files(path) or _has_files(path / "data"))):
        raise InvalidRequestError(
            f"the dataset {path.name!r} has no config {config!r}"
            if config
            else f"which config of the dataset {path.name!r}?",
            hint=f"choose one of {', '.join(configs)}",
            field="config",
        )
    return path


def _has_files(folder: Path) -> bool:
    return any(file.suffix in (".jsonl", ".parquet") for file in folder.glob("*.*"))
