"""`python -m backend.app.key_commands`: API keys for those who share a service.

A tenant sees its own jobs only.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from backend.config import load_config
from backend.private_folder import private_files
from backend.store.key_rows import KeyStore
from backend.store.store import Store
from tinkergym.errors import InvalidRequestError, NotFoundError, TinkerGymError


def main(arguments: Sequence[str] | None = None) -> int:
    """Create, list or revoke keys, whether or not the service runs; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m backend.app.key_commands", description=__doc__)
    parser.add_argument("--config", type=Path, help="the service's TOML file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as for serve")
    parser.add_argument("--json", action="store_true", help="print one JSON document, for scripts")
    commands = parser.add_subparsers(dest="command", required=True)
    create = commands.add_parser("create", help="create a key and print it: it cannot be shown again")
    create.add_argument("tenant")
    create.add_argument("--name", default="", help="what it is for")
    create.add_argument("--read-only", action="store_true", help="it samples and reads, and changes nothing")
    create.add_argument("--requests-per-minute", type=_positive, metavar="N", help="of sampling, at most")
    create.add_argument("--tokens-per-minute", type=_positive, metavar="N", help="prompts and completions")
    shown = commands.add_parser("list", help="show keys, each with its tenant")
    shown.add_argument("tenant", nargs="?", help="only this tenant's keys (default: all)")
    revoke = commands.add_parser("revoke", help="revoke a key immediately")
    revoke.add_argument("key_id")
    options = parser.parse_args(arguments)
    try:
        with private_files():  # It may create the database.
            _run(options)
    except TinkerGymError as error:
        print(f"tinkergym keys: {error}", file=sys.stderr)
        if options.json:
            _emit({"error": error.to_wire()})
        return 2 if isinstance(error, InvalidRequestError | NotFoundError) else 1
    return 0


def _run(options: argparse.Namespace) -> None:
    store = Store.open(load_config(options.config, options.set).store_url)
    try:
        _COMMANDS[options.command](store.keys, options)
    finally:
        store.close()


def _create(keys: KeyStore, options: argparse.Namespace) -> None:
    rate = {name: getattr(options, name) for name in ("requests_per_minute", "tokens_per_minute")}
    key = keys.create(options.tenant, options.name, read_only=options.read_only, **rate)
    if options.json:
        made = {"key": key, "key_id": keys.id_of(key), "tenant": options.tenant, "name": options.name}
        _emit({**made, "read_only": options.read_only, **rate})
    else:
        # Only the key on standard output, for `KEY=$(tinkergym keys create ...)`.
        print(key, flush=True)
    print(
        "for the client: TINKERGYM_API_KEY=<this key>, TINKERGYM_URL=<where the service listens>; "
        "the key cannot be shown again",
        file=sys.stderr,
    )


def _list(keys: KeyStore, options: argparse.Namespace) -> None:
    found = keys.list(options.tenant)
    if options.json:
        _emit({"keys": [key.model_dump() for key in found]})
        return
    for key in found:
        valid = "read-only" if key.read_only else "valid"
        state = valid if key.revoked_at is None else f"revoked {_day(key.revoked_at)}"
        rates = ((key.requests_per_minute, "requests"), (key.tokens_per_minute, "tokens"))
        limits = "".join(f"  {most} {what}/min" for most, what in rates if most is not None)
        print(f"{key.key_id}  {_day(key.created_at)}  {state}  {key.tenant_id}  {key.name}{limits}")


def _revoke(keys: KeyStore, options: argparse.Namespace) -> None:
    keys.revoke(options.key_id)
    if options.json:
        _emit({"key_id": options.key_id, "revoked": True})
    else:
        print(f"{options.key_id} is revoked")


_COMMANDS = {"create": _create, "list": _list, "revoke": _revoke}


def _emit(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)


def _positive(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 10**12:
        raise argparse.ArgumentTypeError(f"must be a number from 1 on, not {text!r:.40}")
    return int(text)


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()


if __name__ == "__main__":
    sys.exit(main())
