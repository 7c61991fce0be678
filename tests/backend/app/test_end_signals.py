import signal

import psutil
import pytest

from backend.config import load_config
from tests.backend.served import still_alive

pytestmark = pytest.mark.service


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_leaves_nothing_behind_when_it_is_stopped(serving, number):
    served = serving()
    served.scheduler_is_up()
    below = served.descendants()
    assert len(below) >= 4  # gateway, scheduler and its child, guardian
    sockets = load_config(None, [f"data_dir={served.data_dir}"]).run_dir
    assert sockets.exists()
    served.process.send_signal(number)
    assert served.process.wait(timeout=60.0) == 0
    assert still_alive(below) == []
    assert not sockets.exists()
    assert "unfinished jobs continue" in served.process.stdout.read()


def test_ends_deaf_process_immediately_by_a_second_signal(serving):
    served = serving(ignores_signals=True)
    served.scheduler_is_up()
    below = served.descendants()
    served.process.send_signal(signal.SIGTERM)
    psutil.wait_procs([served.gateway()], timeout=60.0)  # the first signal was heard
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(timeout=60.0) == 0
    assert still_alive(below) == []
