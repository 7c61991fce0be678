import threading

import pytest

from tests.tinkergym.reporting.jobs import end_event, job_view, step_event
from tinkergym.errors import ServiceUnreachableError
from tinkergym.reporting.reporter import Reporter
from tinkergym.schema.events import JobState


class Kept:
    """Keeps what it is told, and says that it has some steps already."""

    def __init__(self, has=0, broken_at=None):
        self.has, self.broken_at = has, broken_at
        self.steps, self.ended = [], []

    def begin(self, job):
        self.job_id = job.job_id
        return self.has

    def report(self, point):
        if point.step == self.broken_at:
            raise OSError("no space left")
        self.steps.append(point.step)

    def end(self, state):
        self.ended.append(state)


def reported(events, *callbacks):
    Reporter(job_view(), lambda check: iter(events), callbacks).close(ended=True)


def test_reports_every_step_once_in_order_and_then_the_end():
    kept = Kept()
    # After a resume steps appear again.
    steps = [1, 2, 3, 2, 3, 4]
    reported([*(step_event(n, step) for n, step in enumerate(steps, 1)), end_event(9)], kept)
    assert (kept.job_id, kept.steps, kept.ended) == ("job-1", [1, 2, 3, 4], [JobState.COMPLETED])


def test_tells_each_callback_what_it_does_not_have():
    callbacks = [Kept(0), Kept(2), Kept(5)]
    reported([*(step_event(n, n) for n in range(1, 5)), end_event(5, JobState.FAILED)], *callbacks)
    assert [one.steps for one in callbacks] == [[1, 2, 3, 4], [3, 4], []]
    assert [one.ended for one in callbacks] == [[JobState.FAILED]] * 3


def test_names_failing_callback_and_continues_with_the_others(recwarn):
    broken, well = Kept(broken_at=2), Kept()
    reported([*(step_event(n, n) for n in range(1, 5)), end_event(5)], broken, well)
    assert (broken.steps, broken.ended) == ([1], [])
    assert (well.steps, well.ended) == ([1, 2, 3, 4], [JobState.COMPLETED])
    (warning,) = [one for one in recwarn if "Kept" in str(one.message)]
    assert "Kept" in str(warning.message)
    assert "no space left" in str(warning.message)


@pytest.mark.filterwarnings("ignore:reporting of job-1 stopped")
def test_tells_callbacks_that_job_goes_on_without_the_service():
    def broken():
        yield step_event(1, 1)
        raise ServiceUnreachableError("gone")

    kept = Kept()
    reported(broken(), kept)
    assert (kept.steps, kept.ended) == ([1], [None])


def test_stops_closing_while_the_job_goes_on():
    kept, told = Kept(), threading.Event()

    def endless(check):
        yield step_event(1, 1)
        told.set()
        while True:
            check()

    reporter = Reporter(job_view(), endless, [kept])
    assert told.wait(120)
    reporter.close(ended=False)
    assert (kept.steps, kept.ended) == ([1], [None])
