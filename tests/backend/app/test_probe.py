import time

from backend.app.probe import GatewayProbe, SchedulerProbe, scheduler_is_silent
from backend.config import ServiceConfig
from backend.store.store import Store


class Gateway:
    """Answers as the test says, and counts how often it was asked."""

    def __init__(self):
        self.well, self.asked = True, 0
        self.probe = GatewayProbe(self.answer)

    def answer(self):
        self.asked += 1
        return self.well

    def hangs_within(self, seconds, *, started_at=100.0, now):
        return any(self.probe.hangs(started_at, now + tenth / 10) for tenth in range(round(seconds * 10)))


def test_reports_gateway_that_stops_answering_several_times_in_a_row():
    gateway = Gateway()
    assert not gateway.hangs_within(10, now=100.0)
    gateway.well = False
    assert not gateway.hangs_within(3, now=110.0)
    assert gateway.hangs_within(10, now=113.0)


def test_needs_only_one_answer_in_between():
    gateway = Gateway()
    for now in (100.0, 104.0, 108.0, 112.0):
        gateway.well = True
        assert not gateway.hangs_within(1, now=now)
        gateway.well = False
        assert not gateway.hangs_within(3, now=now + 1)


def test_lets_a_starting_gateway_take_its_time_but_not_forever():
    gateway = Gateway()
    gateway.well = False
    assert not gateway.hangs_within(599, now=100.0)
    assert gateway.hangs_within(10, now=699.0)
    assert not gateway.hangs_within(599, started_at=710.0, now=710.0)


def test_reports_gateway_that_answered_another_caller_and_then_stops():
    gateway = Gateway()
    gateway.well = False
    assert not gateway.hangs_within(1, now=100.0)
    gateway.probe.heard()
    assert gateway.hangs_within(10, now=101.0)


def test_probes_as_often_as_ever_after_a_long_machine_sleep():
    gateway = Gateway()
    assert not gateway.hangs_within(2, now=100.0)
    gateway.well = False
    asked = gateway.asked
    assert not gateway.probe.hangs(100.0, 5000.0)
    assert gateway.asked == asked + 1


def test_reports_scheduler_that_is_silent_several_times_in_a_row():
    looks = iter([True, True, False, True, True, True, False])
    probe = SchedulerProbe(lambda: next(looks))
    assert [probe.hangs(0.0, 100.0 + 5 * look) for look in range(7)] == [False] * 5 + [True, False]


def test_calls_scheduler_silent_after_two_leases_without_writing(tmp_path):
    config = ServiceConfig(data_dir=tmp_path, lease_seconds=30)
    store = Store.open(config.store_url)
    assert not scheduler_is_silent(config)  # it starts
    store.service().touch_part("scheduler", time.time() - 50)
    assert not scheduler_is_silent(config)
    store.service().touch_part("scheduler", time.time() - 70)
    assert scheduler_is_silent(config)
    store.close()
