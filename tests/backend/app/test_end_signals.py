import signal

import psutil
import pytest

from tests.backend.served import still_alive

pytestmark = pytest.mark.service


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])  # SIGTERM: test_main, with a restart
def test_leaves_nothing_behind_when_it_is_stopped(serving, number):
    serving().end_by(number)


def test_ends_deaf_process_immediately_by_a_second_signal(serving):
    served = serving(ignores_signals=True)
    served.scheduler_is_up()
    below = served.descendants()
    served.process.send_signal(signal.SIGTERM)
    psutil.wait_procs([served.gateway()], timeout=60.0)  # the first signal was heard
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(timeout=60.0) == 0
    assert still_alive(below) == []
