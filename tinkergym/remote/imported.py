"""Whether a command imports a user's module at the moment: what trains in it must not start then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tinkergym.errors import InvalidRequestError

_module: ContextVar[str] = ContextVar("module that a command imports", default="")


@contextmanager
def imported(module: str) -> Iterator[None]:
    """Refuse jobs until the block ends, in which `module` is imported for what it defines."""
    token = _module.set(module)
    try:
        yield
    finally:
        _module.reset(token)


def refuse_while_imported() -> None:
    """Refuse to start a job while a command imports a module.

    Raises:
        InvalidRequestError: One does; each `tinkergym check script:Env` would train else.
    """
    if module := _module.get():
        raise InvalidRequestError(
            f"{module}.py starts a job when it is imported",
            hint='put what trains below `if __name__ == "__main__":`',
            field="ENV",
        )
