"""For all tests, the packs' too: draws are the same in every run, and nothing waits for a disk."""

import atexit
import gc
import os
import shutil
import sys
import tempfile

import psutil
import pytest
from hypothesis import HealthCheck, settings

# A draw that fails one run in a hundred says nothing about the change that it meets; look for such draws, of
# which there are twice as many, with `pytest --hypothesis-profile=search`.
settings.register_profile(
    "same", deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")

pytest_plugins = ["tests.leftovers", "tests.schedule"]

# Before torch is imported. There are as many test processes as cores, and the tensors are tiny: with two
# threads each, the processes would spend most of their time waiting for each other's threads. And tests
# compute by hand what a job computes with one thread: with two, products are rounded otherwise.
os.environ["OMP_NUM_THREADS"] = "1"

# No test cuts the power, and each wait for the disk takes milliseconds.
os.fsync = lambda _descriptor: None

# Each of the many processes that tests start would compile all code again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The services that tests start sync their stores and checkpoints, too; in memory that takes no time.
_MEMORY = "/dev/shm"
_spare = psutil.virtual_memory().available
if os.access(_MEMORY, os.W_OK) and min(_spare, shutil.disk_usage(_MEMORY).free) > 6 * 10**9:
    tempfile.tempdir = os.environ.setdefault("TMPDIR", _MEMORY)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Give each run a new folder: a service's sockets are found by the path of its data."""
    if config.option.basetemp is None and not hasattr(config, "workerinput"):
        config.option.basetemp = tempfile.mkdtemp(prefix="")
        atexit.register(shutil.rmtree, config.option.basetemp, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep what is imported out of looks for garbage, of which imports, jobs and tests ask for many."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()  # without a look before it: that takes two seconds, and imports leave little garbage
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """After each file, set aside what stays: jobs and clients that end look for garbage in the rest.

    Without it, a look takes two seconds in a process that has run a thousand tests.
    """
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path != item.path:
            gc.collect()
            gc.freeze()
