"""`tinkergym keys`: creates, lists and revokes API keys in the service's database, running or not."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path

from backend.config import load_config
from backend.store.store import Store
from tinkergym.errors import TinkerGymError


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and do one thing to the keys; refusals become one sentence and exit code 2."""
    options = _parser().parse_args(arguments)
    try:
        config = load_config(options.config, options.set)
        # A first key may be made before the service's first start.
        config.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        store = Store.open(config.store_url)
    except (TinkerGymError, OSError) as error:
        print(f"tinkergym keys: {error}", file=sys.stderr)
        return 2
    try:
        return _run(store, options)
    except TinkerGymError as error:
        print(f"tinkergym keys: {error}", file=sys.stderr)
        return 2
    finally:
        store.close()


def _run(store: Store, options: argparse.Namespace) -> int:
    if options.command == "create":
        print(store.keys.create(options.tenant, options.name))
        print("Kept as a hash only, so this is the one time that it is shown.", file=sys.stderr)
    elif options.command == "revoke":
        store.keys.revoke(options.key_id)
        print(f"{options.key_id} is void from now on")
    else:
        for key in store.keys.list(options.tenant):
            created = datetime.datetime.fromtimestamp(key.created_at).astimezone()
            state = "valid" if key.revoked_at is None else "revoked"
            print(f"{key.key_id}  {state:<7}  {created:%Y-%m-%d %H:%M}  {key.name}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tinkergym keys")
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--config", type=Path)
    where.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    commands = parser.add_subparsers(dest="command", required=True)
    create = commands.add_parser("create", parents=[where])
    create.add_argument("name")
    create.add_argument("--tenant", default="local")
    listing = commands.add_parser("list", parents=[where])
    listing.add_argument("--tenant", default="local")
    revoke = commands.add_parser("revoke", parents=[where])
    revoke.add_argument("key_id")
    return parser


if __name__ == "__main__":
    sys.exit(main())
