import pytest

from tests.backend.served import still_alive

pytestmark = pytest.mark.service


def test_when_it_is_killed_nothing_stays_behind_either(serving):
    served = serving(ignores_signals=True)
    served.scheduler_is_up()
    below = served.descendants()
    served.process.kill()
    served.process.wait(timeout=10)
    assert still_alive(below) == []
