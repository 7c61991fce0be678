"""Removes paths of the service's machine from texts for other users."""

from __future__ import annotations

import re
import sys
import sysconfig
import tempfile
from pathlib import Path

from backend.config import ServiceConfig
from backend.store.place import database_file
from tinkergym.errors import TinkerGymError
from tinkergym.trajectory.trajectory import Trajectory
from tinkergym.user_code.quoting import with_relative_paths


class MachinePaths:
    """Knows the folders that the service's texts may name: its data, its models, its code."""

    def __init__(self, config: ServiceConfig | None) -> None:
        """Look up the folders; None is for a process that does not know those of the service."""
        folders = {str(Path(tempfile.gettempdir()).resolve()): "TMP"}
        folders |= {str(Path(prefix).resolve()): "PYTHON" for prefix in (sys.prefix, sys.base_prefix)}
        folders |= dict.fromkeys(sysconfig.get_paths().values(), "PYTHON")
        # Of a checkout; an installed package is below Python's.
        folders |= {str(Path(__file__).parents[1]): "TINKERGYM", str(Path.home()): "HOME"}
        folders |= {} if config is None else _of_service(config)
        self._names = {folder.rstrip("/"): name for folder, name in folders.items()}
        self._names.pop("", None)
        # The longest first, because the data folder may be below the home folder.
        longest = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, longest))})(?![\w-])")

    def hidden_in(self, text: str) -> str:
        """Return the text with `<DATA>`, `<HOME>` and so on instead of those folders."""
        return self._pattern.sub(lambda found: f"<{self._names[found[0]]}>", text)

    def hidden_in_trajectory(self, trajectory: Trajectory) -> Trajectory:
        """Return a trajectory whose error does not name folders of this machine.

        Its traceback names files relative to the folder of their package. Where the trajectory is made:
        later, its digest is part of the run's certificate.
        """
        if not trajectory.error:
            return trajectory
        error = self.hidden_in(with_relative_paths(trajectory.error))
        return trajectory.model_copy(update={"error": error})

    def hidden_in_error(self, error: TinkerGymError) -> TinkerGymError:
        """Return a copy of the error with such texts; the original may be shared."""
        texts = error.message, error.hint, error.field
        hidden = [self.hidden_in(text) for text in texts]
        if list(texts) == hidden:
            return error
        copy = type(error)(hidden[0], hint=hidden[1], field=hidden[2])
        copy.__dict__.update({**error.__dict__, "message": hidden[0], "hint": hidden[1], "field": hidden[2]})
        return copy


def _of_service(config: ServiceConfig) -> dict[str, str]:
    folders = {path: f"MODEL:{name}" for name, path in config.model_paths.items() if Path(path).is_absolute()}
    # The database may be elsewhere.
    if (file := database_file(config.store_url)) is not None:
        folders[str(file.resolve().parent)] = "DATABASE"
    folders |= {config.blobs: "BLOBS"} if config.blobs else {}
    return folders | {str(config.data_dir): "DATA", str(config.data_dir.resolve()): "DATA"}
