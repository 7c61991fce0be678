import pytest

from backend.jobs.step_clock import StepClock


class Time:
    """What all clocks of a test show."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def clock(time):
    return StepClock(lambda: 0.0, lambda: 0.0, clock=time)


def test_estimates_time_left_by_the_last_ten_steps(time, clock):
    assert clock.expected(3) == 0.0
    for seconds in [1000.0, *[4.0] * 10]:
        time.now += seconds
        clock.lap()
    assert clock.expected(3) == 12.0


def test_forgets_first_step_in_estimates_once_others_exist(time, clock):
    time.now += 60.0
    clock.lap()
    assert clock.expected(2) == 120.0
    for seconds in (4.0, 2.0):
        time.now += seconds
        clock.lap()
    assert clock.expected(2) == 6.0


def test_counts_a_pause_in_its_step_but_not_time_left(time, clock):
    time.now += 5.0  # it works,
    time.now += 30.0  # its client says nothing for so long that this is a pause,
    clock.pause(already=30.0)
    time.now += 3600.0
    clock.resume()
    time.now += 5.0  # and it goes on
    assert clock.lap().step == 3640.0
    assert clock.expected(2) == 20.0
    time.now += 10.0
    clock.lap()
    assert clock.expected(2) == 20.0


def test_starts_overlong_pause_with_its_step_and_lets_it_outlast(time, clock):
    time.now += 6.0
    clock.lap()
    time.now += 2.0
    clock.pause(already=500.0)
    time.now += 2.0
    clock.lap()
    time.now += 50.0
    clock.resume()
    time.now += 6.0
    clock.lap()
    assert clock.expected(3) == 9.0  # of 0 and 6 seconds, after the first
