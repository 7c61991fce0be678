import pytest

from tinkergym.rollout.hanging_calls import is_overdue, late_text, overdue_text


class Host:
    """A host whose environment hangs."""

    def __init__(self, waited=0.0, where=""):
        self._waited, self._where = waited, where

    def waited_seconds(self):
        return self._waited

    def where(self):
        return self._where


@pytest.mark.parametrize(
    ("now", "waited", "overdue"),
    [(9.9, 0.0, False), (10.0, 0.0, True), (10.0, 0.5, False), (10.5, 0.5, True)],
)
def test_calls_overdue_when_its_own_time_is_over(now, waited, overdue):
    assert is_overdue(Host(waited), ends_at=10.0, now=now) is overdue


def test_names_hanging_call_with_its_limit_and_place():
    text = overdue_text(Host(where='File "mine.py", line 3, in step\n'), "step", 2.0)
    assert all(part in text for part in ("step", "2.0 s", 'File "mine.py", line 3, in step'))
    assert "2.0 s" in overdue_text(Host(), "reset", 2.0)


def test_names_late_call_with_its_duration():
    text = late_text("reset", 3.25, 2.0)
    assert all(part in text for part in ("reset", "3.25 s", "2 s"))
