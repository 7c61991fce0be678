import tracemalloc

import numpy as np

from backend.gateway.run_series import RunReader, thinned
from tinkergym.schema.events import StepEvent, WarningEvent


def step(number, reward, **metrics):
    return StepEvent(
        step=number,
        steps=9,
        policy_version=number,
        reward_mean=reward,
        loss=0.1,
        stop_reasons={"terminated": 4},
        failed_episodes=int(number == 2),
        tokens_per_second=1.0,
        step_seconds=1.0,
        sampling_seconds=0.5,
        learning_seconds=0.5,
        seconds_left=7.0,
        metrics=metrics,
    )


class Log:
    """An event log; counts how many of its events were read."""

    def __init__(self, *bodies):
        self.bodies, self.read_events = list(bodies), 0

    def __call__(self, job_id, after, limit):
        page = [(after + i + 1, 5.0, one.model_dump_json()) for i, one in enumerate(self.bodies[after:])]
        self.read_events += len(page[:limit])
        return page[:limit]


def values(found, name):
    (one,) = [one for one in found.series if one.name == name]
    return dict(zip(one.steps, one.values, strict=True))


def test_counts_the_newest_record_of_repeated_step():
    log = Log(step(1, 0.1, kl=1.0), step(2, 0.2, kl=2.0), step(2, 0.3), step(3, None))
    found = RunReader().series("job-1", log, [], 100)
    assert (found.last_seq, found.newest_step) == (4, 3)
    assert values(found, "reward_mean") == {1: 0.1, 2: 0.3}
    assert values(found, "kl") == {1: 1.0}
    assert values(found, "stop/terminated") == {1: 4.0, 2: 4.0, 3: 4.0}
    assert found.sums["sampling_seconds"] == 1.5


def test_reads_each_event_once():
    log, reader = Log(*(step(number, 0.0) for number in range(1, 4802))), RunReader()
    reader.series("job-1", log, ["loss"], 10)
    log.bodies.append(step(4802, 0.5))
    assert reader.series("job-1", log, ["reward_mean"], 10).newest_step == 4802
    assert log.read_events == 4802


def test_keeps_extremes_of_long_series():
    column = np.sin(np.arange(10_000) / 50)
    column[7777], column[1234] = 9.0, -9.0
    found = thinned("x", np.arange(10_000), column, 400)
    assert len(found.steps) <= 402
    assert found.steps == sorted(found.steps)
    assert (found.steps[0], found.steps[-1]) == (0, 9999)
    assert {9.0, -9.0} <= set(found.values)


def test_finds_metrics_by_pattern_from_a_step_on():
    log = Log(*(step(number, 0.5, **{"env/won": 1.0, "env/\nwon": 2.0, "env": 3.0}) for number in (1, 2, 3)))
    found = RunReader().series("job-1", log, ["env/*", "loss", "never", "env/*won"], 100, first_step=2)
    assert [one.name for one in found.series] == ["env/\nwon", "env/won", "loss"]
    assert values(found, "env/won") == {2: 1.0, 3: 1.0}
    assert "reward_mean" in found.names


def test_gathers_warnings_by_name_and_counts_failures():
    warnings = [WarningEvent(name="cut", message=f"m{i}", step=i, episodes=[f"j:{i}:0"]) for i in (1, 2, 2)]
    repeated = WarningEvent(name="cut", message="again", step=2, repeated=True)
    found = RunReader().alarms("job-1", Log(*warnings, repeated, step(1, 0.0), step(2, 0.0)))
    assert [(one.name, one.count, one.steps) for one in found] == [
        ("cut", 3, [1, 2]),
        ("failed_episodes", 1, [2]),
    ]
    assert (found[0].message, found[0].episodes) == ("m2", ["j:2:0"])


def test_follows_metrics_that_come_and_go():
    log = Log(*(step(number, 0.5, **{f"env/{number % 3}": float(number)}) for number in range(1, 7)))
    found = RunReader().series("job-1", log, ["env/*"], 100)
    assert {one.name: dict(zip(one.steps, one.values, strict=True)) for one in found.series} == {
        "env/0": {3: 3.0, 6: 6.0},
        "env/1": {1: 1.0, 4: 4.0},
        "env/2": {2: 2.0, 5: 5.0},
    }


def test_finds_patterns_of_many_stars_in_little_time():
    known = {"a" * 200: 1.0, "ab/ba/b": 2.0}
    log = Log(step(1, 0.5, **known))
    asked = {"*" * 90 + "!": [], "a*/*/b": ["ab/ba/b"], "ab*b": ["ab/ba/b"], "ab/ba/b*": [], "*a*b*a*": []}
    for pattern, names in asked.items():
        assert [one.name for one in RunReader().series("job-1", log, [pattern], 100).series] == names


def test_keeps_a_bounded_number_of_ever_new_metrics():
    fresh = [{f"env/{number}-{i}": 1.0 for i in range(3)} for number in range(2000)]
    log = Log(*(step(number, 0.5, **metrics) for number, metrics in enumerate(fresh, start=1)))
    reader = RunReader()
    tracemalloc.start()
    found = reader.series("job-1", log, ["reward_mean", "env/0-0", "env/500-2"], 20_000)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    own = sum(not name.startswith("env/") for name in found.names)
    assert len(found.names) + found.left_out == own + 3 * 2000
    assert len(found.names) == 2000
    assert [len(one.steps) for one in found.series] == [2000, 1, 1]
    assert kept < 6e6  # 6,000 columns of 2,000 steps would take 96 MB
