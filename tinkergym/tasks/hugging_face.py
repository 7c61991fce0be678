"""Tasks from a Hugging Face dataset. Needs the extra `huggingface`, imported at first use."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from tinkergym.basics.extras import import_extra
from tinkergym.errors import InvalidRequestError
from tinkergym.tasks.data_read_once import file_key, shared
from tinkergym.tasks.fingerprint import rows_fingerprint
from tinkergym.tasks.source import Task, TaskSource, named_split, refuse_empty, refuse_split

_BATCH = 1000


class HuggingFaceTasks(TaskSource):
    """The rows of a dataset of the `datasets` library: saved in a folder, or on the hub.

    A folder written by `save_to_disk` is opened without a network. A dataset on the hub is downloaded at
    first use, unless it is in the library's cache.

    Example:
        >>> tasks = HuggingFaceTasks("/data/sums", split="train")
        >>> tasks = HuggingFaceTasks("openai/gsm8k", split="test", config="main", revision="e53f048")
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        split: str | None = None,
        config: str | None = None,
        revision: str | None = None,
    ) -> None:
        """Set the dataset.

        Args:
            path: A folder written by `save_to_disk` of a dataset or a dict of datasets, or a name on the hub.
            split: Which split; None only for a folder with a single data set.
            config: The hub's configuration name.
            revision: The hub's branch, tag or commit; use a commit for reproducible tasks.

        Raises:
            InvalidRequestError: A folder has no such split, or no split is given for the hub.
        """
        self._arguments = (os.fspath(path), split, config, revision)
        self._path = Path(path)
        self.split = split
        if self._path.is_dir():
            if config is not None or revision is not None:
                raise InvalidRequestError(
                    "config and revision are for the hub, but this is a folder",
                    hint="leave them out",
                    field="config" if config is not None else "revision",
                )
            listing = self._path / "dataset_dict.json"
            if listing.is_file():
                # Only a few names of folders are read; the data stays where it is.
                self.splits = _splits_of(listing)
                named_split(self._path.name, self.splits, split)
            elif not (self._path / "state.json").is_file():
                raise InvalidRequestError(
                    f"the folder {self._path} holds no dataset",
                    hint="put .jsonl or .parquet files there, or the output of save_to_disk",
                    field="path",
                )
            else:
                refuse_split(self._path.name, split)
        elif split is None:
            raise InvalidRequestError(f"which split of {path}?", hint="split='train'", field="split")
        self._opened: Any = None

    @property
    def name(self) -> str:
        """The folder's or the hub's name, and the split."""
        name = self._path.name if self._path.is_dir() else self._arguments[0]
        return name if self.split is None else f"{name}/{self.split}"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the rows, in hex; reads them all, and is the same however they are stored."""
        rows = self._rows()
        return shared(("hugging face rows", *self._key()), lambda: rows_fingerprint(_raw(rows), self.name))

    def __len__(self) -> int:
        return len(self._rows())

    def read(self, index: int) -> Task:
        """Return a row."""
        return dict(self._rows()[index])

    def _key(self) -> tuple[object, ...]:
        state = self._path / (self.split or "") / "state.json"
        return (*self._arguments, file_key(state) if state.is_file() else None)

    def _rows(self) -> Any:
        if self._opened is None:
            rows = shared(("hugging face", *self._key()), self._open)
            refuse_empty(self, len(rows))
            self._opened = rows
        return self._opened

    def _open(self) -> Any:
        datasets = import_extra(
            "datasets",
            "Hugging Face datasets need the package datasets",
            extra="huggingface",
            error=InvalidRequestError,
        )
        path, split, config, revision = self._arguments
        try:
            if self._path.is_dir():
                return datasets.load_from_disk(str(self._path / split) if split else path)
            return datasets.load_dataset(path, config, split=split, revision=revision)
        # Whatever the hub's client raises: unknown name, unknown split, no network, a broken file.
        except Exception as error:
            raise InvalidRequestError(
                f"the dataset {self.name} cannot be opened: {type(error).__name__}: {error}",
                hint="check name, config and split; without a network, use a folder written by save_to_disk",
                field="path",
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, self._arguments


def _splits_of(listing: Path) -> tuple[str, ...]:
    try:
        written = json.loads(listing.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        written, why = None, f": {error}"
    else:
        why = ""
    splits = written.get("splits") if isinstance(written, dict) else None
    if not isinstance(splits, list) or not all(isinstance(split, str) for split in splits):
        raise InvalidRequestError(
            f"{listing} does not list the splits of a dataset{why}",
            hint="write the folder again with save_to_disk",
            field="path",
        )
    return tuple(splits)


def _again(path: str, split: str | None, config: str | None, revision: str | None) -> HuggingFaceTasks:
    return HuggingFaceTasks(path, split=split, config=config, revision=revision)


def _raw(rows: Any) -> Iterator[Task]:
    # As stored: images stay bytes instead of being decoded.
    for table in rows.with_format("arrow").iter(batch_size=_BATCH):
        yield from table.to_pylist()
