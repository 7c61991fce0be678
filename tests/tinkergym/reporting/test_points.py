import pytest

from tests.tinkergym.reporting.jobs import step_event
from tinkergym.reporting.points import Happenings, point_of
from tinkergym.schema.events import Event, JobState, SettingChange, StateEvent, UpdateEvent


def values(**settings):
    event = step_event(7, 3, **settings)
    return point_of(event.body, event.time).values


def test_takes_point_from_steps_number_and_services_time():
    event = step_event(7, 3)
    point = point_of(event.body, event.time)
    assert (point.step, point.time) == (3, 7.0)


def test_names_numbers_as_trl_only_where_the_meaning_is_same():
    found = values(
        reward_mean=0.5,
        reward_std=0.1,
        episodes=8,
        metrics={
            "grad_norm": 1.5,
            "learning_rate": 1e-3,
            "clip_fraction": 0.25,
            "truncated_fraction": 0.125,
            "logprob_gap_max": 0.01,
            "zero_variance_groups": 1.0,
            "compared_groups": 4.0,
            "env/blue": 0.75,
        },
    )
    expected = {
        "loss": 0.5,
        "reward": 0.5,
        "reward_std": 0.1,
        "step_time": 1.0,
        "grad_norm": 1.5,
        "learning_rate": 1e-3,
        "clip_ratio/region_mean": 0.25,
        "completions/clipped_ratio": 0.125,
        "sampling/sampling_logp_difference/max": 0.01,
        "frac_reward_zero_std": 0.25,
        "env/blue": 0.75,
        "episodes": 8.0,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert "clip_fraction" not in found


def test_omits_what_a_step_did_not_measure():
    found = values(reward_mean=None, loss=None, metrics={"zero_variance_groups": 0.0, "compared_groups": 0.0})
    assert not found.keys() & {"reward", "loss", "frac_reward_zero_std"}
    assert not values(records=32).keys() & {"episodes", "turns"}


def test_names_each_policys_metrics_alike_below_its_own_name():
    own = {"zero_variance_groups": 1.0, "compared_groups": 4.0, "sampled_entropy": 0.5}
    found = values(metrics={f"policy/{agent}/{name}": value for agent in "xo" for name, value in own.items()})
    for agent in "xo":
        assert found[f"policy/{agent}/frac_reward_zero_std"] == 0.25
        assert found[f"policy/{agent}/entropy"] == 0.5


def test_reports_changes_at_the_step_they_apply_to():
    def event(seq, body):
        return Event(seq=seq, job_id="job-1", time=float(seq), body=body)

    changes = [
        SettingChange(name="learning_rate", old=1e-3, new=5e-4),
        SettingChange(name="budget", old=None, new={"hours": 2}),
    ]
    happened = Happenings()
    found = {}
    for one in [
        step_event(1, 1),
        event(2, UpdateEvent(changes=changes, from_step=3)),
        event(3, StateEvent(state=JobState.PAUSED)),
        event(13, StateEvent(state=JobState.QUEUED)),
        step_event(14, 2),
        step_event(15, 3),
    ]:
        happened.note(one)
        if one.body.type == "step":
            found[one.body.step] = happened.added_to(point_of(one.body, one.time)).values
    assert [found[step].get("paused_seconds") for step in (1, 2, 3)] == [None, 10.0, None]
    assert [found[step].get("update/learning_rate") for step in (1, 2, 3)] == [None, None, 5e-4]
    assert "update/budget" not in found[3]
