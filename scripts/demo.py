"""`make demo`: a service for the time of one example, unless one already answers.

Jobs and checkpoints stay in the service's data folder ($TINKERGYM_HOME, else ~/.tinkergym). Ctrl-C ends the
job too: otherwise it would go on with the service's next start, beside what was started then.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tinkergym.cli.local_service import local_service
from tinkergym.errors import TinkerGymError

EXAMPLE = Path(__file__).parent.parent / "examples" / "tictactoe.py"


def main() -> int:
    """Run the example against a service; the exit status is 0 when it ran to its end."""
    try:
        with local_service(announce=print):
            _run_example()
    except TinkerGymError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted; what was started is stopped", file=sys.stderr)
        return 130
    return 0


def _run_example() -> None:
    # Not by runpy: the job that an interrupted example has started is found among its names.
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(EXAMPLE)}
    try:
        exec(compile(EXAMPLE.read_text(encoding="utf-8"), str(EXAMPLE), "exec"), names)
    except KeyboardInterrupt:
        if "job" in names:
            with suppress(TinkerGymError):
                names["job"].cancel()
        raise


if __name__ == "__main__":
    sys.exit(main())
