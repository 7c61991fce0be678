from tinkergym.rollout.played_episode import late_text, overdue_text


class Host:
    """A host whose environment hangs."""

    def __init__(self, where=""):
        self._where = where

    def where(self):
        return self._where


def test_names_hanging_call_with_its_limit_and_place():
    text = overdue_text(Host(where='File "mine.py", line 3, in step\n'), "step", 2.0)
    assert all(part in text for part in ("step", "2.0 s", 'File "mine.py", line 3, in step'))
    assert "2.0 s" in overdue_text(Host(), "reset", 2.0)


def test_names_late_call_with_its_duration():
    text = late_text("reset", 3.25, 2.0)
    assert all(part in text for part in ("reset", "3.25 s", "2 s"))
