"""`tinkergym` and `python -m tinkergym`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from tinkergym.cli.json_output import keep_stdout_until_the_end
        from tinkergym.cli.main import app

        keep_stdout_until_the_end()
        app()
    except KeyboardInterrupt:  # Ctrl-C while the commands are still being imported.
        sys.exit(130)


if __name__ == "__main__":
    main()
