"""Import a user's module for a command: importing must not start jobs."""

from __future__ import annotations

import importlib
import sys
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType

from tinkergym.errors import InvalidRequestError

_module: ContextVar[str] = ContextVar("module that a command imports", default="")


def import_for_definitions(module: str) -> ModuleType:
    """Import a user's module for a command that needs a definition of it; jobs are refused meanwhile.

    Like `python -m`: modules in the current folder can be used.
    """
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    token = _module.set(module)
    try:
        return importlib.import_module(module)
    finally:
        _module.reset(token)


def refuse_while_imported() -> None:
    """Refuse to start a job while a command imports a module.

    Raises:
        InvalidRequestError: A command is importing it; otherwise `tinkergym check script:Env` would start a
            job.
    """
    if module := _module.get():
        raise InvalidRequestError(
            f"{module}.py starts a job when it is imported",
            hint='put the training code under `if __name__ == "__main__":`',
            field="ENV",
        )
