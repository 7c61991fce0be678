import pytest

from tinkergym.display.run_overview import RunOverview
from tinkergym.schema.events import EpisodeEvent, ErrorView, JobState
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.summaries import Alarm, JobLabels, RunSeries, Series

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def overview():
    spec = RLSpec(environment=EnvironmentRef(id="board/TicTacToeVs-v0"), steps=9, seed=5, name=HOSTILE)
    view = JobView(
        job_id="job-1",
        spec=spec,
        state=JobState.FAILED,
        error=ErrorView(type="X", message=HOSTILE, hint="mend it"),
        created_at=0,
        updated_at=0,
    )
    alarm = Alarm(name="failed", message=HOSTILE, count=2, first_step=1, last_step=4, steps=[1, 4])
    series = [
        Series(name=name, steps=[1, 2], values=[0.0, 0.5]) for name in ("other", "env/<b>", "reward_mean")
    ]
    return RunOverview(
        view=view,
        labels=JobLabels(tags=["sweep"], note=HOSTILE),
        series=RunSeries(last_seq=9, newest_step=2, names=[one.name for one in series], series=series),
        alarms=[alarm],
        evaluations=[],
        checkpoints=[],
        episodes=[
            EpisodeEvent(
                step=1,
                episode_id="e",
                seed=1,
                stop_reason="x",
                episode_return=1,
                transcript=[("user", HOSTILE)],
            )
        ],
        next_commands={"read its log": "tinkergym jobs logs job-1"},
    )


def test_shows_first_what_matters_most(overview):
    lines = overview.lines()
    assert [line.split()[0] for line in lines if line.startswith(("  reward_mean", "  env/"))] == [
        "reward_mean",
        "env/<b>",
    ]
    assert not any(line.startswith("  other") for line in lines)
    assert "  seed            5" in lines
    assert lines[-1].endswith("tinkergym jobs logs job-1")


def test_escapes_every_text_of_the_page(overview):
    page = overview.page()
    assert "<script" not in page
    assert "<b>" not in page
    assert page.count("&lt;script&gt;") >= 5
    assert "default-src 'none'" in page


def test_writes_metrics_with_a_row_per_step(overview):
    assert overview.metrics_csv().splitlines() == [
        "step,other,env/<b>,reward_mean",
        "1,0.0,0.0,0.0",
        "2,0.5,0.5,0.5",
    ]
