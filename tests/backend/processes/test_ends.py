import errno
import os
import signal
import subprocess
import threading

import pytest

from backend.processes.ends import wait_for_end

_LONG_SECONDS = 250.0  # Beyond the time that pytest gives a test.


def test_returns_when_one_process_ends():
    with (
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other,
    ):
        threading.Timer(0.05, child.stdin.close).start()
        while child.poll() is None:
            wait_for_end([other.pid, child.pid], _LONG_SECONDS)
        assert other.poll() is None


def test_returns_when_signal_arrives():
    came, returned = [], threading.Event()

    def send():
        while not returned.wait(0.05):  # One that comes before the wait begins is not noticed.
            os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: came.append(True))
    sender = threading.Thread(target=send)
    sender.start()
    try:
        wait_for_end([os.getpid()], _LONG_SECONDS)
    finally:
        returned.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert came


def test_returns_at_once_for_ended_process():
    with subprocess.Popen(["true"]) as child:
        pass
    assert wait_for_end([child.pid], _LONG_SECONDS)


def test_says_when_no_process_has_ended():
    assert not wait_for_end([os.getpid()], 0.0)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM, errno.EMFILE])
def test_returns_soon_where_ends_cannot_be_watched(monkeypatch, code):
    def refused(_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pidfd_open", refused, raising=False)
    wait_for_end([os.getpid()], _LONG_SECONDS)
