import pytest

from tinkergym.display.run_overview import RunOverview
from tinkergym.errors import InvalidRequestError
from tinkergym.reporting.run_comparison import RunComparison
from tinkergym.schema.events import EvaluationEvent, JobState
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import Train
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.summaries import JobLabels, RunSeries, Series


def a_run(number, mean, *metrics, **settings):
    spec = RLSpec(environment=EnvironmentRef(id="board/TicTacToeVs-v0"), steps=2, **settings)
    view = JobView(job_id=f"job-{number}", spec=spec, state=JobState.COMPLETED, created_at=0, updated_at=0)
    done = EvaluationEvent(
        name="held",
        step=2,
        policy_version=2,
        episodes=40,
        failed_episodes=0,
        mean=mean,
        low=mean - 0.1,
        high=mean + 0.1,
    )
    series = [Series(name=name, steps=[1, 2], values=[0.0, mean]) for name in ("reward_mean", *metrics)]
    names = [one.name for one in series]
    return RunOverview(
        view=view,
        labels=JobLabels(),
        series=RunSeries(last_seq=1, newest_step=2, names=names, series=series),
        alarms=[],
        evaluations=[done.model_copy(update={"mean": 0.0}), done],
        checkpoints=[],
    )


def test_compares_settings_curves_and_newest_evaluations():
    found = RunComparison([a_run(1, 0.2, "kl", seed=1), a_run(2, 0.8, seed=2), a_run(3, 0.25, seed=2)])
    assert found.settings == {"seed": ["1", "2", "2"]}
    one_agent = RunComparison([a_run(1, 0.2), a_run(2, 0.8, agents={"black": Train()})])
    assert all("None" not in values for values in one_agent.settings.values())
    assert found.metrics == ["reward_mean"]
    assert list(found.curves().values())[1] == [(1, 0.0), (2, 0.8)]
    assert [(one.run, round(one.difference.mean, 2), one.is_clear) for one in found.evaluations] == [
        (1, 0.6, True),
        (2, 0.05, False),
    ]
    assert found.to_json()["evaluations"][0]["job"] == "job-2"


def test_refuses_metrics_that_a_run_lacks():
    found = RunComparison([a_run(1, 0.2, "kl"), a_run(2, 0.8)])
    with pytest.raises(InvalidRequestError) as refused:
        found.curves("kl")
    assert refused.value.field == "metric"
