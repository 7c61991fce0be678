"""For all tests, the packs' too: draws are the same in every run, the order of tests only if one likes."""

import os
import random

import pytest
from hypothesis import HealthCheck, settings

# A draw that fails one run in a hundred says nothing about the change that it meets; look for such draws with
# `pytest --hypothesis-profile=search`.
settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")

pytest_plugins = ["tests.leftovers"]

# Before torch is imported. There are as many test processes as cores, and the tensors are tiny: with two
# threads each, the processes would spend most of their time waiting for each other's threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser):
    """Add `--shuffle`."""
    parser.addoption(
        "--shuffle",
        nargs="?",
        type=int,
        const=-1,
        metavar="SEED",
        help="run the files, and the tests of each file, in random order; the seed is printed",
    )


def pytest_configure(config):
    """Draw the seed once: the processes that share the tests inherit it."""
    if config.option.shuffle == -1:
        drawn = os.environ.setdefault("TINKERGYM_SHUFFLE", str(random.SystemRandom().randrange(10**6)))
        config.option.shuffle = int(drawn)


def pytest_report_header(config):
    """Say how to run the tests in this order again."""
    seed = config.option.shuffle
    return None if seed is None else f"random order: --shuffle={seed}"


@pytest.hookimpl(tryfirst=True)  # before pytest itself, which brings tests with an equal fixture together
def pytest_collection_modifyitems(config, items):
    """Files with long tests come first: one that begins last would leave the other cores idle."""
    if config.option.shuffle is not None:
        draw = random.Random(config.option.shuffle)
        draw.shuffle(items)
        first = {}
        for number, item in enumerate(items):
            first.setdefault(item.path, number)
        items.sort(key=lambda item: first[item.path])
        return
    long = {
        item.path for item in items if item.get_closest_marker("service") or item.get_closest_marker("slow")
    }
    items.sort(key=lambda item: item.path not in long)
