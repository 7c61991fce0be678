"""A job's settings pass few packages from `client.train` to its loop, and never come back to one.

A profiler notes each of our functions that is given them, in all threads. ARCHITECTURE.md draws the way.
"""

import socket
import sys
import threading
import time
from contextlib import contextmanager

import pytest

import tinkergym as tg
from backend.admission.models import FileCatalog
from backend.admission.preflight import Preflight
from backend.gateway.app import create_app
from backend.gateway.event_tail import EventTail
from backend.gateway.parts import GatewayParts
from backend.gateway.pool_proxy import PoolProxy
from backend.gateway.server import protocol
from backend.jobs.job_context import JobContext
from backend.jobs.kinds import loop_of
from backend.policies.bound import Bound
from backend.store.records import JobLease
from tests.backend.gateway_lab import Running
from tinkergym.schema import setting_errors
from tinkergym.schema.jobs.common import TrainingSpec

THE_WAY = {
    "tinkergym.remote",
    "tinkergym.schema",
    "backend.gateway",
    "backend.admission",
    "backend.store",
    "backend.workers",
    "backend.policies",
    "backend.jobs",
}
CARRIERS = (TrainingSpec, JobLease, JobContext, Bound)


def package_of(frame):
    """Return `tinkergym.remote` and the like; nothing for the code of others."""
    names = frame.f_globals.get("__name__", "").split(".")
    return ".".join(names[:2]) if names[0] in ("tinkergym", "backend") else ""


class Way:
    """What the settings pass."""

    def __init__(self):
        self.packages = {}
        """Each with the first function that was given them."""
        self.returns = []
        """Packages that were entered again from another one that they had called."""
        self.worded = False
        """Whether an error was put into words."""
        self.arrived = threading.Event()

    def __call__(self, frame, event, _):
        package = package_of(frame) if event == "call" and not self.arrived.is_set() else ""
        if not package:
            return
        code = frame.f_code
        self.worded |= frame.f_globals["__name__"] == setting_errors.__name__
        given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if not any(isinstance(frame.f_locals.get(name), CARRIERS) for name in given):
            return
        self.packages.setdefault(package, code.co_qualname)
        callers, above = [package], frame.f_back
        while above is not None:
            caller = package_of(above)
            if caller and caller != callers[-1]:
                callers.append(caller)
            above = above.f_back
        if package in callers[1:]:
            self.returns.append(" <- ".join(callers))
        if code is loop_of.__code__:
            self.arrived.set()


@contextmanager
def watched():
    way = Way()
    threading.setprofile(way)  # threads that start from now on
    sys.setprofile(way)
    try:
        yield way
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        way.arrived.set()  # threads that go on have it yet


@contextmanager
def served(lab):
    """A gateway on the lab's store, with all that it checks in earnest."""
    catalog = FileCatalog(lab.config)
    parts = GatewayParts(
        config=lab.config,
        store=lab.store,
        catalog=catalog,
        job_check=Preflight(catalog, lab.config.limits),
        proxy=PoolProxy(),
        tail=EventTail(lab.store),
        clock=time.time,
    )
    listener = socket.create_server(("127.0.0.1", 0))
    running = Running(create_app(parts), listener, http=protocol(lab.config.limits), ws="none")
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", lab.store.keys.create(lab.tenant_id, "test")
    finally:
        running.stop()


@pytest.mark.service
def test_a_job_passes_few_packages_and_never_goes_back(make_lab):
    lab = make_lab(env_workers=1)
    with watched() as way, served(lab) as (url, key):
        with tg.Client(url, key) as client:
            job = client.train("bandit/Bandit-v0", steps=1, rollout="server")
        lab.pool.start_job(job.id)
        assert way.arrived.wait(60)
        lab.tenant.request_cancel(job.id)
    assert set(way.packages) == THE_WAY, way.packages
    assert way.returns == []
    assert not way.worded
