"""`python -m backend.processes.quick_start MODULE [ARGUMENT ...]`: run the `main` of a module of the service.

Objects created by imports live as long as the process. Collecting garbage during them took a seventh of the
computing in which a gateway starts, and later collections would look through them again.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def command(module: str, *arguments: str) -> tuple[str, ...]:
    """Return how to start a module, or a package with a `__main__`, as a process of its own."""
    return (sys.executable, "-m", __name__, module, *arguments)


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage in the block, which imports."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def main() -> None:
    """Import the module without garbage collection, then run its `main`, as `python -m MODULE` does."""
    del sys.argv[0]
    with without_collections():
        program = importlib.import_module(sys.argv[0])
        if hasattr(program, "__path__"):
            program = importlib.import_module(f"{program.__name__}.__main__")
        gc.freeze()
    sys.exit(program.main())


if __name__ == "__main__":
    main()
