import math

import pytest

from backend.gateway.run_alarms import entropy_alarms, idle_alarms, metric_alarms, raises_alarms

STEPS = range(1, 61)


def times(sampling, learning):
    return {
        "step_seconds": [10.0] * 60,
        "sampling_seconds": [sampling] * 60,
        "learning_seconds": [learning] * 60,
    }


@pytest.mark.parametrize(("sampling", "learning", "alarms"), [(1.0, 1.0, 1), (2.0, 2.0, 0), (9.0, 9.0, 0)])
def test_says_when_neither_engine_nor_learner_works(sampling, learning, alarms):
    found = idle_alarms(STEPS, times(sampling, learning))
    assert [(one.name, one.last_step) for one in found] == [("idle", 60)] * alarms
    assert idle_alarms(range(1, 6), times(sampling, learning)) == []


def test_names_policies_whose_entropy_has_fallen():
    fallen = [1.0] * 30 + [0.01] * 30
    columns = {
        "policy/black/sampled_entropy": fallen,
        "policy/white/sampled_entropy": [1.0] * 60,
        "sampled_entropy": [math.nan] * 60,
        "kl": fallen,
    }
    (alarm,) = entropy_alarms(STEPS, columns)
    assert alarm.name == "entropy_falls"
    assert "black" in alarm.message


@pytest.mark.parametrize(
    ("metric", "values", "alarm"),
    [
        ("policy/black/parity_mean", [0.004] * 30 + [0.015] * 30, "parity_drift"),
        ("parity_mean", [0.004] * 30 + [0.006] * 30, None),
        ("parity_mean", [1e-7] * 30 + [1e-5] * 30, None),
        ("staleness_mean", [0.0] * 40 + [2.5] * 20, "stale_tokens"),
        ("staleness_mean", [1.0] * 60, None),
        ("staleness_mean", [2.5] * 20 + [1.0] * 40, None),
    ],
)
def test_tells_drift_and_stale_tokens_from_metrics(metric, values, alarm):
    assert raises_alarms(metric)
    found = metric_alarms(STEPS, {metric: values})
    assert [(one.name, one.last_step) for one in found] == ([(alarm, 60)] if alarm else [])
