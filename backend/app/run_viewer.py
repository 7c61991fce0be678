"""`python -m backend.app.run_viewer PATH`: the pages over a finished, crashed or copied run, service or not.

PATH is a bundle of `job.certificate(bundle=...)`, or a service's data folder, whether or not one runs in it.
What is shown is a copy: nothing in PATH changes. The pages, and the HTTP API that they read, are the
service's own, over a database of their own; only a read-only key exists.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from math import inf
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import ValidationError
from starlette.routing import BaseRoute

from backend.catalog.limited_reads import LimitedReads
from backend.config import ServiceConfig
from backend.errors import ConfigError
from backend.gateway.app import create_app
from backend.gateway.uvicorn_server import serve_on
from backend.gateway.wiring import assembled
from backend.store.copied_runs import add_copied_episodes
from backend.store.database_copy import copy_file
from backend.store.kept_episodes import KeptEpisodes
from backend.store.key_rows import LOCAL_TENANT
from backend.store.place import DEFAULT_FILE
from backend.store.store import Store
from tinkergym.certificates.archive import BundleFiles, reading_bundle, unreadable
from tinkergym.certificates.bundle import CERTIFICATE, EVENTS, LEDGER
from tinkergym.errors import InvalidRequestError, TinkerGymError
from tinkergym.schema.certificate import Certificate, StepLedger
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.events import Event

_FOREVER = 1e12
_EPISODES = re.compile(r"episodes/step-(\d{6,12})\.jsonl")
_WHAT_TO_NAME = "name a bundle that job.certificate(bundle=...) wrote, or a service's data folder"


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the pages until Ctrl-C; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m backend.app.run_viewer", description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tenant", default="")
    parser.add_argument("--json", action="store_true", help="print a JSON document per line, for programs")
    options = parser.parse_args(arguments)

    def say(url: str, page: str) -> None:
        shown = json.dumps({"event": "viewing", "url": url, "page": page})
        print(shown if options.json else f"open {page} ; Ctrl-C ends it", flush=True)

    # A model that is not on this machine is not fetched: its tokens are shown without their text.
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        with tempfile.TemporaryDirectory(prefix="tinkergym-view-") as folder:
            view(options.path, Path(folder), options.port, say, options.tenant)
    except TinkerGymError as error:
        print(f"tinkergym view: {error}", file=sys.stderr)
        if options.json:
            print(json.dumps({"error": error.to_wire()}), flush=True)
        return 2
    return 0


def view(path: Path, folder: Path, port: int, say: Callable[[str, str], None], tenant: str = "") -> None:
    """Serve what is at `path` until a signal comes; `say` is told the service's URL and the page to open.

    Raises:
        ConfigError: The database cannot be read, or the port is taken.
        InvalidRequestError: It is neither a data folder nor a bundle, or it is damaged; or it has several
            tenants' runs, and none is named.
    """
    with opened(path, folder) as (config, store, page):
        key = store.keys.create(shown_tenant(store, tenant), "view", read_only=True)
        reads = LimitedReads()
        try:
            listener = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(f"port {port} cannot be used: {error}", hint="leave it out") from error
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        # Browsers do not send what is behind the `#`; the login page reads it and logs in.
        say(url, f"{url}/dashboard/login?next={page}#{key}")
        app = viewer_app(config, store, reads)
        serve_on(listener, app, config.limits)
        reads.close()


def shown_tenant(store: Store, wanted: str) -> str:
    """Return the tenant whose runs are shown: the one that is named, else `local`, else the only one.

    Raises:
        InvalidRequestError: It has no runs, or several tenants have, and `local` is none of them.
    """
    there = store.tenants_with_jobs()
    if wanted in there or (not wanted and len(there) == 1):
        return wanted or there[0]
    if not wanted and (not there or LOCAL_TENANT in there):
        return LOCAL_TENANT
    what = f"the tenant {wanted!r} has no runs" if wanted else "several tenants have runs"
    raise InvalidRequestError(
        what,
        hint=f"name one of {', '.join(there)} with --tenant" if there else "leave it out",
        field="tenant",
    )


def viewer_app(config: ServiceConfig, store: Store, reads: LimitedReads) -> FastAPI:
    """Return the gateway without all routes that change something, whatever key a request has."""
    app = create_app(assembled(config, store, reads))
    app.router.routes[:] = filter(_reads, app.router.routes)
    return app


def _reads(route: BaseRoute) -> bool:
    path, methods = getattr(route, "path", ""), getattr(route, "methods", None)
    return path.startswith("/dashboard") or methods is None or "GET" in methods


@contextmanager
def opened(path: Path, folder: Path) -> Iterator[tuple[ServiceConfig, Store, str]]:
    """Yield the settings and the store of a viewer, and the page that it begins with.

    Args:
        path: A data folder or a bundle.
        folder: An empty one, for the viewer's own files.

    Raises:
        ConfigError: The database cannot be read.
        InvalidRequestError: It is neither a data folder nor a bundle, or it is damaged.
    """
    own: dict[str, Any] = {"data_dir": folder, "preload": [], "env_workers": 0, "allow_any_model": True}
    is_folder = path.is_dir()
    if is_folder:
        if not (path / DEFAULT_FILE).is_file():
            raise InvalidRequestError(f"{path} has no {DEFAULT_FILE}", hint=_WHAT_TO_NAME, field="path")
        own["blobs"] = str(path.absolute())
        copy_file(path / DEFAULT_FILE, folder / DEFAULT_FILE)
    elif not path.is_file():
        raise InvalidRequestError(f"there is no {path}", hint=_WHAT_TO_NAME, field="path")
    config = ServiceConfig(**own)
    with closing(Store.open(config.store_url, upgrade=True)) as store:
        store.keys.ensure_tenant(LOCAL_TENANT)
        page = "/dashboard" if is_folder else f"/dashboard/jobs/{_unpack(path, config, store)}"
        # Nothing waits for a scheduler here.
        store.service().touch_part("scheduler", _FOREVER)
        for pool in store.service().pools(_FOREVER, max_age=inf):
            store.service().remove_pool(pool.pool_id)
        yield config, store, page


def _unpack(path: Path, config: ServiceConfig, store: Store) -> str:
    """Copy a bundle's run; return its job's id."""
    try:
        with reading_bundle(path) as files:
            job = Certificate.model_validate_json(files.body(CERTIFICATE)).facts.job
            if not re.fullmatch(r"[\w-]+", job.job_id):  # It names a folder.
                raise unreadable(f"{job.job_id!r:.200} is not the id of a job")
            log = map(Event.model_validate_json, files.lines(EVENTS))
            ledgers = map(StepLedger.model_validate_json, files.lines(LEDGER))
            store.add_copied_run(LOCAL_TENANT, job, log, ledgers)
            _unpack_episodes(files, KeptEpisodes(config.job_files.below(job.job_id)))
            return job.job_id
    except ValidationError as error:
        raise unreadable(f"{path} is damaged: {error.errors()[0]['msg']}") from error
    except (KeyError, OSError, tarfile.TarError, zlib.error) as error:
        raise unreadable(f"{path} is not a bundle, or it is damaged: {error}") from error


def _unpack_episodes(files: BundleFiles, kept: KeptEpisodes) -> None:
    for name in sorted(files.names):
        if found := _EPISODES.fullmatch(name):
            lines = list(files.lines(name))
            for line in lines:
                EpisodeResult.model_validate_json(line)  # the pages could not show it otherwise
            add_copied_episodes(kept, int(found[1]), lines)


if __name__ == "__main__":
    sys.exit(main())
