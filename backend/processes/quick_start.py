"""`python -m backend.processes.quick_start MODULE [ARGUMENT ...]`: run the `main` of a module of the service.

Objects created by imports live as long as the process. Collecting garbage during them took a seventh of the
computing in which a gateway starts, and later collections would look through them again.
"""

from __future__ import annotations

import gc
import importlib
import sys


def command(module: str, *arguments: str) -> tuple[str, ...]:
    """Return how to start a module, or a package with a `__main__`, as a process of its own."""
    return (sys.executable, "-m", __name__, module, *arguments)


def main() -> None:
    """Import the module without garbage collection, then run its `main`, as `python -m MODULE` does."""
    del sys.argv[0]
    gc.disable()
    program = importlib.import_module(sys.argv[0])
    if hasattr(program, "__path__"):
        program = importlib.import_module(f"{program.__name__}.__main__")
    gc.freeze()
    gc.enable()
    sys.exit(program.main())


if __name__ == "__main__":
    main()
