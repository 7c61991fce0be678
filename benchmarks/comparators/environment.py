"""Where a comparator runs: a separate virtual environment, created when it is first needed.

Its torch has the same version as ours, so that the comparison is about libraries and not torch builds.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ENVIRONMENTS = Path(__file__).parent / ".venvs"


def python_with(*requirements: str) -> Path:
    """Return a Python interpreter that has the pinned packages.

    That is this one, if it has exactly these versions; else one in `benchmarks/comparators/.venvs/`, which
    is installed now if it is not there.

    Args:
        requirements: `name==version`; the first one names the environment.

    Raises:
        RuntimeError: They could not be installed; the text has pip's last lines.
    """
    if all(_installed(requirement) for requirement in requirements):
        return Path(sys.executable)
    folder = ENVIRONMENTS / requirements[0].replace("==", "-")
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists():
        venv.create(folder, with_pip=True, clear=True)
        pinned = [f"{name}=={version(name)}" for name in ("torch", "transformers", "peft")]
        index = ["--extra-index-url", "https://download.pytorch.org/whl/cpu"] if "+cpu" in pinned[0] else []
        install = subprocess.run(
            [str(python), "-m", "pip", "install", "-q", *index, *pinned, *requirements],
            capture_output=True,
            text=True,
            check=False,
        )
        if install.returncode:
            raise RuntimeError(f"{' '.join(requirements)} cannot be installed:\n{install.stderr[-2000:]}")
        done.touch()
    return python


def _installed(requirement: str) -> bool:
    name, _, wanted = requirement.partition("==")
    try:
        return version(name) == wanted
    except PackageNotFoundError:
        return False
