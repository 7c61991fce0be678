import sys
import threading

import pytest

from backend.app.restarted_part import RestartedPart, pause_seconds


def part(tmp_path, code):
    return RestartedPart("thing", [sys.executable, "-c", code], "test-mark", tmp_path / "thing.log")


def run_to_its_end(part, now):
    part.start(now, {})
    while (ended := part.ended(now)) is None:
        pass
    return ended


def test_says_how_a_part_ended_and_restarts_after_growing_pauses(tmp_path):
    thing = part(tmp_path, "print('last words'); raise SystemExit(3)")
    now = 100.0
    for pause in (0.2, 0.4, 0.8):
        assert thing.due(now)
        assert run_to_its_end(thing, now) == "exit code 3"
        assert thing.ended(now) is None
        assert not thing.due(now + 0.99 * pause)
        now += 1.01 * pause
    assert thing.last_words() == "last words"


def test_forgives_older_failures_of_a_part_that_was_healthy_long(tmp_path):
    thing = part(tmp_path, "import os; os.kill(os.getpid(), 9)")
    for _ in range(5):
        assert run_to_its_end(thing, 100.0) == "SIGKILL"
    thing.start(200.0, {})
    while (ended := thing.ended(300.0)) is None:
        pass
    assert (ended, thing.failures) == ("SIGKILL", 1)
    assert thing.due(300.0)


def test_limits_the_pauses():
    assert pause_seconds(50) == 10.0


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_retries_a_part_for_whose_log_there_is_no_thread(tmp_path, monkeypatch, error):
    thing = part(tmp_path, "raise SystemExit(3)")

    def refuse(_thread):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        thing.start(100.0, {})
    assert "could not be started" in thing.ended(100.0)
    assert run_to_its_end(thing, 101.0) == "exit code 3"


def test_retries_a_part_that_could_not_start_at_all(tmp_path):
    thing = RestartedPart("thing", ["/no/such/program"], "test-mark", tmp_path / "thing.log")
    thing.start(100.0, {})
    assert "could not be started" in thing.ended(100.0)
    assert not thing.running
    assert not thing.due(100.1)
    assert thing.due(100.5)
