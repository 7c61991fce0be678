import sys
import types
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinkergym as tg
from tinkergym.display.html import condense, curve, histogram
from tinkergym.display.progress import sparkline

SMALL = tg.GRPO(group_size=2, groups_per_step=2)


class Echo(tg.SingleTurnEnv):
    def ask(self, options):
        return f"<b>{self.np_random.integers(100)}</b> & more?"

    def score(self, answer):
        return float(self.np_random.integers(3)), {"length": float(len(answer))}


@pytest.fixture
def job(client):
    job = client.train(Echo, steps=3, algorithm=SMALL)
    yield job
    job.close()


def read(html):
    """Parse it: what comes from outside cannot have opened or closed a tag."""
    return ElementTree.fromstring(html)


def test_shows_job_with_its_curve_in_notebook(job):
    assert read(job._repr_html_()) is not None  # with or without its first steps
    job.wait()
    shown = read(job._repr_html_())
    (line,) = [one for one in shown.iter() if one.tag.endswith("polyline")]
    assert len(line.get("points").split()) == 3
    assert job.id in job._repr_html_()


def test_draws_growing_curve_while_waiting_in_notebook(job, monkeypatch):
    drawn = []
    handle = types.SimpleNamespace(update=lambda shown: drawn.append(shown._repr_html_()))
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    display = types.ModuleType("IPython.display")
    display.display = lambda shown, display_id: drawn.append(shown._repr_html_()) or handle
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    job.wait()
    assert "polyline" not in drawn[0] and "polyline" in drawn[-1]
    drawn.clear()
    job.wait(progress=False)
    assert not drawn


def test_shows_evaluation_as_one_line_and_a_card(job, client):
    evaluation = client.policy("nano").evaluate(Echo, episodes=40)
    assert len(repr(evaluation)) < 200 and str(evaluation) in repr(evaluation)
    shown = read(evaluation._repr_html_())
    assert [one for one in shown.iter() if one.tag.endswith("rect")]
    assert "<b>" in "".join(shown.itertext())  # what the environment said, as text
    failed = tg.Evaluation(trajectories=())
    assert "none of 0 episodes completed" in repr(failed) and read(failed._repr_html_()) is not None


def test_shows_policy_as_a_card(client):
    shown = "".join(read(client.policy("nano", system_prompt="Be <brief>.")._repr_html_()).itertext())
    assert "Be <brief>." in shown and "nano" in shown


@given(st.lists(st.floats(-1e300, 1e300), max_size=600), st.text())
def test_draws_every_curve_as_a_picture(values, name):
    for draw in (curve, histogram):
        drawn = draw(values, name.replace("\x00", ""))
        assert bool(drawn) == bool(values)
        assert "nan" not in drawn and "inf" not in drawn


def test_draws_line_of_blocks_from_lowest_to_highest_value():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([5.0, 5.0]) == "▁▁"
    assert sparkline([]) == ""


def test_averages_more_values_than_columns():
    assert condense([1, 3, 5, 7], 2) == [2, 6]
    assert len(condense(list(range(1001)), 60)) == 60
