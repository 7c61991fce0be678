from backend.supervisor.probe import GatewayProbe


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


def test_a_gateway_that_answered_and_then_does_not_several_times_in_a_row_hangs():
    gateway = Gateway()
    assert not gateway.hangs_within(10, now=100.0)
    gateway.well = False
    assert not gateway.hangs_within(3, now=110.0)
    assert gateway.hangs_within(10, now=113.0)


def test_one_answer_in_between_is_enough():
    gateway = Gateway()
    for now in (100.0, 104.0, 108.0, 112.0):
        gateway.well = True
        assert not gateway.hangs_within(1, now=now)
        gateway.well = False
        assert not gateway.hangs_within(3, now=now + 1)


def test_a_gateway_that_starts_may_take_its_time_but_not_for_ever():
    gateway = Gateway()
    gateway.well = False
    assert not gateway.hangs_within(59, now=100.0)
    assert gateway.hangs_within(10, now=159.0)
    assert not gateway.hangs_within(59, started_at=170.0, now=170.0)


def test_after_a_long_sleep_of_the_machine_it_is_asked_as_often_as_ever():
    gateway = Gateway()
    assert not gateway.hangs_within(2, now=100.0)
    gateway.well = False
    asked = gateway.asked
    assert not gateway.probe.hangs(100.0, 5000.0)
    assert gateway.asked == asked + 1
