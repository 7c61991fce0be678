"""`python -m backend.processes.with_parent PROGRAM ...`: a Python program that ends with its parent.

For programs that others start, here Ray. Run in this interpreter, because a second one would start later.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from backend.processes.children import die_with_parent


def main() -> None:
    """Run the program as `python PROGRAM ...` does."""
    die_with_parent()
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
