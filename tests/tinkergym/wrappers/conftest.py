import warnings
from contextlib import suppress

import pytest

from tinkergym.errors import TinkerGymError
from tinkergym.wrappers import TrainRemotely


@pytest.fixture
def train_remotely(connect):
    """Begin jobs that end with the test: until then their heartbeats go on."""
    begun = []

    def begin(env, **settings):
        begun.append(TrainRemotely(env, client=connect(), **settings))
        return begun[-1]

    yield begin
    for env in begun:
        env.job.cancel()
        with warnings.catch_warnings(action="ignore"), suppress(TinkerGymError):
            env.close()
