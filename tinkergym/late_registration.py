"""Makes `tinkergym/Remote-v0` known to Gymnasium as soon as Gymnasium is there, without importing it.

`import tinkergym` loads no Gymnasium, and Gymnasium loads no plugins; so that `gymnasium.make` knows the
environment after both imports, in either order, the import of Gymnasium is waited for.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from tinkergym.serving.names import REMOTE_ID

_ENTRY_POINT = "tinkergym.remote.remote_env:make_remote"


def register_remote() -> None:
    """Register the environment now, or when Gymnasium is imported."""
    gymnasium = sys.modules.get("gymnasium")
    # Half of it is there while it is being imported.
    if gymnasium is not None and hasattr(gymnasium, "register"):
        _register(gymnasium)
    elif not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch("gymnasium", _register))


def _register(gymnasium: ModuleType) -> None:
    if REMOTE_ID not in gymnasium.registry:
        gymnasium.register(REMOTE_ID, _ENTRY_POINT)


class _Watch(MetaPathFinder):
    """Finds nothing itself; waits for a module to be looked for, and has something done after its import."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Let the others find the module."""
        del path, target
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenLoader(spec.loader, self._then)
        return spec


class _ThenLoader(Loader):
    """Loads a module as its own loader does, and does something with it."""

    def __init__(self, loader: Loader, then: Callable[[ModuleType], None]) -> None:
        self._loader, self._then = loader, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the module's own loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the module's own loader, which is put back in its place: others ask the module for it."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._then(module)
