"""Whether a command is importing a user's module: importing must not start jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tinkergym.errors import InvalidRequestError

_module: ContextVar[str] = ContextVar("module that a command imports", default="")


@contextmanager
def imported(module: str) -> Iterator[None]:
    """Refuse jobs while the block imports `module` for its definitions."""
    token = _module.set(module)
    try:
        yield
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
