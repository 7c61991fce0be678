import pytest

from backend.scheduler.ray_patience import until_known


class Clock:
    now = 0.0

    def __call__(self):
        return self.now

    def pause(self, seconds):
        self.now += seconds


def slow(clock, seconds):
    def ask():
        if clock.now < seconds:
            raise RuntimeError("not registered yet")
        return "known"

    return ask


@pytest.fixture
def clock():
    return Clock()


def test_waits_for_a_slow_part_as_long_as_it_lives(clock):
    asked = slow(clock, 100)
    assert until_known(asked, lambda: True, clock=clock, pause=clock.pause) == "known"
    assert clock.now >= 100


@pytest.mark.parametrize(("dies_at", "ends_at"), [(3.0, 3.0), (1000.0, 200.0)])
def test_gives_up_when_the_part_is_dead_or_too_slow(clock, dies_at, ends_at):
    with pytest.raises(RuntimeError):
        until_known(
            slow(clock, 500), lambda: clock.now < dies_at, seconds=200, clock=clock, pause=clock.pause
        )
    assert clock.now == pytest.approx(ends_at, abs=1.0)
