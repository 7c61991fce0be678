"""The calls of a program as a tree, read from its record."""

from tests.tinkergym.recording.sessions import RENDERER, played, said, user
from tinkergym.testing.samplers import ScriptedSampler
from tinkergym.trajectory.call_tree import call_tree, turn_parents


def test_shows_each_call_below_the_one_that_it_continues():
    def fork(session):
        first = said(session, user("plan"))
        for step in ("left", "right"):
            second = said(session, user("plan"), first, user(step))
            said(session, user("plan"), first, user(step), second, user("go on"))
        said(session, user("another"))
        return 1.0

    record = played(fork, sampler=ScriptedSampler(RENDERER, lambda prompt: "ok"))["agent"]
    lines = ["plan -> ok", "  left -> ok", "    go on -> ok", "  right -> ok", "    go on -> ok"]
    assert call_tree(record).splitlines() == [*lines, "another -> ok"]
    assert turn_parents(record) == [None, 0, 1, 0, 3, None]
