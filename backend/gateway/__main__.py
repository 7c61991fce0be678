"""`python -m backend.gateway FD`: serve HTTP on the socket that the supervisor opened as descriptor FD."""

from __future__ import annotations

import logging
import socket
import sys

from backend.catalog.limited_reads import LimitedReads
from backend.config import ServiceConfig
from backend.external import judges, opponent_models
from backend.gateway.app import create_app
from backend.gateway.uvicorn_server import serve_on
from backend.gateway.wiring import assembled
from backend.processes.children import freeze_startup_objects
from backend.processes.exhaustion import end_when_exhausted
from backend.store.collector import Collector, CollectorThread
from backend.store.store import Store
from tinkergym.tools.sandbox import isolation_rule

# By its package's name, however it is started.
_log = logging.getLogger("backend.gateway")


def main() -> None:
    """Serve until a signal comes."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    # A log line per request to a pool is too much.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    config = ServiceConfig.from_environment()
    # For the processes that check environments and play evaluations.
    judges.allow_only(config.judge_urls)
    opponent_models.allow_only(config.opponent_urls)
    isolation_rule.require(config.python_tool)
    store = Store.open(config.store_url, part="gateway")
    reads = LimitedReads()
    parts = assembled(config, store, reads)
    # A key that cannot be used is reported now, not at the first certificate.
    _log.info("certificates are signed by %s", parts.operator_key.public)
    listener = socket.socket(fileno=int(sys.argv[1]))
    app = create_app(parts)
    freeze_startup_objects()
    end_when_exhausted()
    left_over = Collector(store, job_files=config.job_files, uploads=config.uploads, images=config.images)
    collector = CollectorThread(left_over)
    serve_on(listener, app, config.limits)
    collector.close()
    reads.close()


if __name__ == "__main__":
    main()
