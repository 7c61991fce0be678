"""How an evaluation shows on the error stream how far it is; what a script prints is left alone."""

import pytest

import tinkergym as tg
from tinkergym.remote.client import Client


class Asking(tg.SingleTurnEnv):
    def ask(self, options):
        return "?"

    def score(self, answer):
        return 1.0


@pytest.fixture
def policy(start_service):
    start_service()
    with Client() as client:
        yield client.policy("nano")


def test_shows_nothing_where_error_stream_is_no_terminal(policy, capsys):
    policy.evaluate(Asking, episodes=3)
    assert capsys.readouterr() == ("", "")


def test_counts_episodes_on_a_terminal_there(policy, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    policy.evaluate(Asking, episodes=3)
    shown = capsys.readouterr()
    assert (shown.out, "3/3" in shown.err) == ("", True)
    policy.evaluate(Asking, episodes=3, progress=False)
    tg.evaluate(policy, Asking, episodes=3, on_episode=lambda trajectory: None)
    assert capsys.readouterr() == ("", "")
