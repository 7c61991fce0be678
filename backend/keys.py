"""`python -m backend.keys`: API keys for those who share a service; a tenant sees its own jobs only."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from backend.config import load_config
from backend.store.store import Store
from tinkergym.errors import InvalidRequestError, NotFoundError, TinkerGymError


def main(arguments: Sequence[str] | None = None) -> int:
    """Create, list or revoke keys, whether the service runs or not; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m backend.keys", description=__doc__)
    parser.add_argument("--config", type=Path, help="the service's TOML file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as for serve")
    commands = parser.add_subparsers(dest="command", required=True)
    create = commands.add_parser("create", help="make a key and print it: it cannot be shown again")
    create.add_argument("tenant")
    create.add_argument("--name", default="", help="what it is for")
    shown = commands.add_parser("list", help="show keys, each with its tenant")
    shown.add_argument("tenant", nargs="?", help="whose; everybody's unless it is said")
    revoke = commands.add_parser("revoke", help="make a key void at once")
    revoke.add_argument("key_id")
    options = parser.parse_args(arguments)
    try:
        _run(options)
    except TinkerGymError as error:
        print(f"tinkergym keys: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidRequestError | NotFoundError) else 1
    return 0


def _run(options: argparse.Namespace) -> None:
    store = Store.open(load_config(options.config, options.set).store_url)
    try:
        if options.command == "create":
            # The key alone on the standard output, for `KEY=$(tinkergym keys create ...)`.
            print(store.keys.create(options.tenant, options.name), flush=True)
            print(
                "for the client: TINKERGYM_API_KEY=<this key>, TINKERGYM_URL=<where the service listens>; "
                "the key cannot be shown again",
                file=sys.stderr,
            )
        elif options.command == "revoke":
            store.keys.revoke(options.key_id)
            print(f"{options.key_id} is void from now on")
        else:
            for key in store.keys.list(options.tenant):
                state = "valid" if key.revoked_at is None else f"revoked {_day(key.revoked_at)}"
                print(f"{key.key_id}  {_day(key.created_at)}  {state}  {key.tenant_id}  {key.name}")
    finally:
        store.close()


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()


if __name__ == "__main__":
    sys.exit(main())
