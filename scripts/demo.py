"""`make demo`: a service for the time of one example, unless one already answers.

Jobs and checkpoints stay in the service's data folder ($TINKERGYM_HOME, else ~/.tinkergym).
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from tinkergym.cli.local_service import local_service
from tinkergym.errors import TinkerGymError

EXAMPLE = Path(__file__).parent.parent / "examples" / "tictactoe.py"


def main() -> int:
    """Run the example against a service; the exit status is 0 when it ran to its end."""
    try:
        with local_service(announce=print):
            runpy.run_path(str(EXAMPLE), run_name="__main__")
    except TinkerGymError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted; what was started is stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
