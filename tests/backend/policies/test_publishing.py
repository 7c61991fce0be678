from concurrent.futures import Future

import pytest

from backend.policies.publishing import TakenWeights, publish
from tinkergym.errors import ParityError


class Engine:
    """Receives weights and says what it holds."""

    def __init__(self, holds, given):
        self._holds, self._given = holds, given
        self.received = None

    def publish(self, policy, version, weights, *, let_finish=False):
        self.received = (policy, version, weights, let_finish)
        return self._given

    def loaded(self):
        return self._holds


def taken(sha256):
    hashed = Future()
    hashed.set_result(sha256)
    return TakenWeights("the weights", hashed)


def test_sends_version_to_engine_with_its_weights():
    engine = Engine({"policy-1": 3}, "aa")
    publish(engine, "policy-1", 3, taken("aa"), let_finish=True)
    assert engine.received == ("policy-1", 3, "the weights", True)


@pytest.mark.parametrize(("holds", "given"), [({"policy-1": 2}, "aa"), ({}, "aa"), ({"policy-1": 3}, "bb")])
def test_reports_other_version_or_weights_in_engine_as_parity_error(holds, given):
    with pytest.raises(ParityError):
        publish(Engine(holds, given), "policy-1", 3, taken("aa"), let_finish=False)
