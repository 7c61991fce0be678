"""For all tests, the packs' too: property tests draw the same examples in every run, on slow machines too."""

import os

from hypothesis import HealthCheck, settings

# A draw that fails one run in a hundred says nothing about the change that it meets; look for such draws with
# `pytest --hypothesis-profile=search`.
settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")

# Before torch is imported. There are as many test processes as cores, and the tensors are tiny: with two
# threads each, the processes would spend most of their time waiting for each other's threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items):
    """Files with long tests come first: one that begins last would leave the other cores idle."""
    long = {
        item.path for item in items if item.get_closest_marker("service") or item.get_closest_marker("slow")
    }
    items.sort(key=lambda item: item.path not in long)
