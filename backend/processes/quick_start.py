"""`python -m backend.processes.quick_start MODULE [ARGUMENT ...]`: run the `main` of a module of the service.

Almost everything that imports create stays. Looking for garbage in between took a seventh of the time in
which a gateway starts, and what was imported would be looked through again later.
"""

from __future__ import annotations

import gc
import importlib
import sys


def command(module: str, *arguments: str) -> tuple[str, ...]:
    """Return how to start a module, or a package with a `__main__`, as a process of its own."""
    return (sys.executable, "-m", __name__, module, *arguments)


def main() -> None:
    """Import the module without garbage collection, then do what `python -m MODULE` would do."""
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
