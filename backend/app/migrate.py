"""`python -m backend.app.migrate`: upgrade the database of an older version, while no process uses it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from backend.app import data_folder
from backend.config import load_config
from backend.private_folder import private_files
from backend.store.place import database_file
from backend.store.store import Store
from tinkergym.errors import TinkerGymError


def main(arguments: Sequence[str] | None = None) -> int:
    """Upgrade the database that the settings name; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m backend.app.migrate", description=__doc__)
    parser.add_argument("--config", type=Path, help="the service's TOML file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as for serve")
    parser.add_argument("--json", action="store_true", help="print one JSON document, for scripts")
    options = parser.parse_args(arguments)
    try:
        config = load_config(options.config, options.set)
        on_file = database_file(config.store_url) is not None
        with (
            data_folder.claimed(config) if on_file else private_files(),
            closing(Store.open(config.store_url, part="migrate", upgrade=True)) as store,
        ):
            said = f"the database has schema {store.schema}, the newest"
            print(json.dumps({"schema": store.schema}) if options.json else said)
    except TinkerGymError as error:
        print(f"tinkergym migrate: {error}", file=sys.stderr)
        if options.json:
            print(json.dumps({"error": error.to_wire()}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
