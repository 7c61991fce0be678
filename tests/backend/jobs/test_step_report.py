from __future__ import annotations

import pytest

from backend.episodes.episode_requests import step_requests
from backend.jobs.step_report import (
    MOST_METRICS_OF_LOOP,
    episodes_to_read,
    failure_warnings,
    per_environment,
    spike_warnings,
    statistics,
    within_limit,
)
from backend.jobs.zero_variance import nothing_to_compare
from tests.backend.seats import result_of, two_seats
from tinkergym.algorithms import GRPO
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.events import StepEvent
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.testing.made_up_episodes import one_turn_episode
from tinkergym.testing.made_up_episodes import one_turn_episode as episode
from tinkergym.trajectory.trajectory import StopReason, Trajectory, reason_line


def played(*trajectories: Trajectory):
    algorithm = GRPO(group_size=len(trajectories), groups_per_step=1, baseline="batch")
    spec = RLSpec(environment=EnvironmentRef(id="x"), steps=1, algorithm=algorithm)
    return [
        (request, EpisodeResult(episode_id=request.episode_id, lease_id="l", trajectories=[trajectory]))
        for request, trajectory in zip(step_requests("job-1", spec, 1), trajectories, strict=True)
    ]


def broken(error: str) -> Trajectory:
    return episode(100.0, StopReason.ENVIRONMENT_ERROR, error=error)


def test_counts_failed_episodes_but_excludes_them_from_means():
    counted = statistics(played(episode(1.0, score=2.0), episode(0.0, score=4.0), broken("boom")))
    assert (counted.episodes, counted.failed_episodes) == (3, 1)
    assert (counted.reward_mean, counted.reward_std) == (0.5, 0.5)
    assert counted.stop_reasons == {"environment_error": 1, "terminated": 2}
    assert (counted.sampled_tokens, counted.turns) == (3, 3)
    assert counted.environment_metrics == {"env/score": 3.0}


def two_seat_episodes(*pairs: tuple[Trajectory, Trajectory], trained: str = "xo"):
    algorithm = GRPO(group_size=len(pairs), groups_per_step=1, baseline="batch")
    spec = RLSpec(environment=EnvironmentRef(id="x"), steps=1, algorithm=algorithm)
    requests = [two_seats(request, trained=trained) for request in step_requests("job-1", spec, 1)]
    return [(request, result_of(request, *pair)) for request, pair in zip(requests, pairs, strict=True)]


def test_averages_nothing_over_seats():
    found = two_seat_episodes(
        (episode(1.0, agent="x", score=2.0), episode(-1.0, agent="o", score=5.0)),
        (episode(0.0, agent="o", score=7.0), episode(0.0, agent="x", score=4.0)),
    )
    counted = statistics(found)
    assert (counted.episodes, counted.turns, counted.reward_mean, counted.reward_std) == (2, 4, None, None)
    assert counted.seat_metrics["seat/x/reward_mean"] == 0.5
    assert counted.seat_metrics["seat/o/reward_mean"] == -0.5
    assert counted.environment_metrics == {"env/x/score": 3.0, "env/o/score": 6.0}
    best, worst = episodes_to_read(found, 1)
    assert [(event.agent, event.episode_return) for event in (best, worst)] == [("x", 1.0), ("o", -1.0)]


def test_excludes_untrained_seat_from_every_mean():
    pair = episode(1.0, agent="x"), episode(-1.0, agent="o")
    counted = statistics(two_seat_episodes(pair, pair, trained="x"))
    assert (counted.reward_mean, counted.seat_metrics) == (1.0, {})


def test_counts_failed_episode_once_for_all_seats():
    idle = episode(agent="o").model_copy(update={"turns": [], "segments": []})
    lost = [episode(0.0, StopReason.ENVIRONMENT_ERROR, error="boom", agent=agent) for agent in "xo"]
    found = two_seat_episodes((lost[0], lost[1]), (episode(1.0, agent="x"), idle))
    counted = statistics(found)
    assert (counted.episodes, counted.failed_episodes) == (2, 1)
    (warning,) = failure_warnings(found, step=1)
    assert (warning.name, warning.count, warning.message) == ("environment_error", 1, "boom")


def test_reports_failed_game_by_the_seat_that_failed():
    game = (
        episode(0.0, StopReason.SEAT_FAILED, error="agent 'o' failed with sampling_failed: no", agent="x"),
        episode(0.0, StopReason.SAMPLING_FAILED, error="agent 'o': no", agent="o"),
    )
    (warning,) = failure_warnings(two_seat_episodes(game, game), step=1)
    assert (warning.name, warning.count, warning.message) == ("sampling_failed", 2, "agent 'o': no")


def test_reports_no_mean_reward_for_a_step_of_failures_only():
    counted = statistics(played(broken("boom"), broken("boom")))
    assert (counted.failed_episodes, counted.reward_mean, counted.reward_std) == (2, None, None)


def test_tells_each_kind_of_failure_once_with_commonest_first():
    text = "Traceback ...\n  line {}\nValueError: bad"
    warnings = failure_warnings(
        played(broken("other"), broken(text.format(1)), broken(text.format(2)), episode()), step=7
    )
    assert [(warning.count, warning.step) for warning in warnings] == [(2, 7), (1, 7)]
    assert warnings[0].message == text.format(1)
    assert {warning.name for warning in warnings} == {"environment_error"}


HUNG = "step did not return within {} s\nit is here:\n  File 'env.py', line {}, in step\n    time.sleep(9)\n"


def test_knows_timeout_by_its_first_line_which_an_event_keeps():
    hung = [
        episode(100.0, StopReason.ENVIRONMENT_TIMEOUT, error=HUNG.format(1.0, line) + "more\n" * 2000)
        for line in (3, 4)
    ]
    other = episode(100.0, StopReason.ENVIRONMENT_TIMEOUT, error=HUNG.format(1.0, 3).replace("step", "reset"))
    first, second = failure_warnings(played(*hung, other), step=1)
    assert (first.count, second.count) == (2, 1)
    assert first.message.startswith("step did not return within 1.0 s")
    assert reason_line(first.name, first.message) == "step did not return within 1.0 s"


def test_groups_failures_that_differ_in_numbers_as_one_kind():
    slow = [broken(f"reset returned after {seconds} s") for seconds in (2.06e-05, 13, 1.5)]
    assert [warning.count for warning in failure_warnings(played(*slow, broken("boom")), step=1)] == [3, 1]


def test_omits_metric_whose_mean_is_beyond_all_numbers():
    counted = statistics(played(episode(1.0, huge=1e308, score=1.0), episode(0.0, huge=1e308, score=3.0)))
    assert counted.environment_metrics == {"env/score": 2.0}


def test_warns_of_nothing_without_failures():
    assert failure_warnings(played(episode(), episode()), step=1) == []


@pytest.mark.parametrize(("rewards", "shown"), [((0.0, 1.0, -1.0), [1.0, -1.0]), ((1.0, 1.0), [1.0])])
def test_shows_the_best_and_the_worst_episode(rewards, shown):
    events = episodes_to_read(played(*map(episode, rewards)), step=1)
    assert [event.episode_return for event in events] == shown
    assert events[0].transcript == [("user", "go"), ("assistant", "gone")]


def test_shows_no_failed_episodes():
    assert episodes_to_read(played(broken("boom"), broken("boom")), step=1) == []


def test_warns_separately_of_number_that_left_what_was_usual():
    event = StepEvent.model_construct(step=7, metrics={"grad_norm": 9.0, "grad_norm_spike": 31.4})
    (warning,) = spike_warnings(event)
    assert (warning.name, warning.step) == ("grad_norm_spike", 7)
    assert "31 times" in warning.message
    assert spike_warnings(StepEvent.model_construct(step=8, metrics={"grad_norm": 0.3})) == []


def step_with(**metrics: float) -> StepEvent:
    return StepEvent.model_construct(step=7, metrics=metrics)


def test_tells_of_step_whose_groups_all_earned_the_same():
    warning = nothing_to_compare(step_with(zero_variance_groups=3.0, compared_groups=3.0), [])
    assert warning is not None
    assert (warning.name, warning.step) == ("nothing_to_compare", 7)
    assert "in none of the 3 groups of step 7" in warning.message
    assert nothing_to_compare(step_with(zero_variance_groups=3.0, compared_groups=4.0), []) is None
    assert nothing_to_compare(step_with(zero_variance_groups=0.0, compared_groups=0.0), []) is None
    assert nothing_to_compare(step_with(grad_norm=0.0), []) is None


@pytest.mark.parametrize(("std", "said"), [(0.0, True), (0.5, False), (None, False)])
def test_reports_what_every_episode_earned(std, said):
    metrics = {"zero_variance_groups": 3.0, "compared_groups": 3.0}
    event = StepEvent.model_construct(step=7, metrics=metrics, reward_mean=1.0, reward_std=std)
    warning = nothing_to_compare(event, [])
    assert warning is not None
    assert ("earned 1)" in warning.message) is said


def test_tells_what_happens_to_one_of_several_policies_by_seat():
    (spike,) = spike_warnings(step_with(**{"policy/o/loss_spike": 12.0, "policy/x/loss": 1.0}))
    assert (spike.name, "'o'" in spike.message, "'x'" in spike.message) == ("loss_spike", True, False)
    counts = {"x": (2.0, 2.0), "o": (1.0, 2.0)}
    metrics = {f"policy/{agent}/zero_variance_groups": silent for agent, (silent, _) in counts.items()}
    metrics |= {f"policy/{agent}/compared_groups": compared for agent, (_, compared) in counts.items()}
    warning = nothing_to_compare(step_with(**metrics), [])
    assert warning is not None
    assert ("'x'" in warning.message, "'o'" in warning.message) == (True, False)


def test_limits_metrics_of_a_step_and_counts_the_others():
    # Every episode may name others.
    episodes = [episode(1.0, **{f"m{number}-{own}": 1.0 for own in range(90)}) for number in range(4)]
    counted = statistics(played(*(trajectory for trajectory in episodes)))
    named = [name for name in counted.environment_metrics if name.startswith("env/")]
    assert len(named) + counted.environment_metrics["env_metrics_left_out"] == 360
    assert len(named) == 200


def test_cuts_metrics_of_many_seats_and_policies_to_event_size():
    metrics = {f"env/{seat}/m{n}": 1.0 for seat in range(10) for n in range(200)}
    metrics |= {f"seat/{seat}/reward_mean": 1.0 for seat in range(10)}
    metrics |= {f"policy/{seat}/loss": 1.0 for seat in range(10)} | {"retried_episodes": 2.0}
    kept = within_limit(metrics)
    step = StepEvent.model_construct(step=1, loss=None, reward_mean=None).model_copy(update={"metrics": kept})
    assert len(kept) == MOST_METRICS_OF_LOOP
    assert kept["metrics_left_out"] == len(metrics) - (MOST_METRICS_OF_LOOP - 1)
    assert len(step.reward_means()) == len(step.losses()) == 10
    assert kept["retried_episodes"] == 2.0
    assert kept == within_limit(metrics)
    assert list(kept)[:-1] == [name for name in metrics if name in kept]


def test_drops_environment_metrics_first():
    names = [
        "env/score",
        "env/size",
        "environment/easy/env/score",
        "environment/easy/reward_mean",
        "seat/x/reward_mean",
        "policy/x/loss",
        "retried_episodes",
    ]
    metrics = dict.fromkeys(names, 1.0)
    for kept in (5, 4, 3, 1):
        cut = within_limit(metrics, kept + 1)
        assert cut == {**dict.fromkeys(names[-kept:], 1.0), "metrics_left_out": 7.0 - kept}


def test_keeps_all_metrics_that_fit():
    metrics = {f"m{number}": float(number) for number in range(MOST_METRICS_OF_LOOP)}
    assert within_limit(metrics) == metrics


SEVERAL = [{"id": "easy", "weight": 0.5}, {"id": "hard", "weight": 0.5}]


def spec(**settings):
    return RLSpec(steps=1, algorithm=GRPO(group_size=2, groups_per_step=4), **settings)


def test_reports_nothing_for_one_environment():
    job = spec(environment=EnvironmentRef(id="easy"))
    played = [(one, result_of(one, one_turn_episode(1.0))) for one in step_requests("job-1", job, 1)]
    assert per_environment(job, played) == {}


def test_gives_each_environment_figures_of_its_own():
    job = spec(environments=SEVERAL)
    played = []
    for request in step_requests("job-1", job, 1):
        easy = request.environment.id == "easy"
        episode = one_turn_episode(1.0, won=1.0) if easy else one_turn_episode(0.25)
        played.append((request, result_of(request, episode)))
    found = per_environment(job, played)
    assert found["environment/easy/reward_mean"] == 1.0
    assert found["environment/hard/reward_mean"] == 0.25
    assert found["environment/easy/episodes"] + found["environment/hard/episodes"] == 8
    assert [name for name in found if name.endswith("won")] == ["environment/easy/env/won"]


def test_excludes_what_failed_from_rewards():
    job = spec(environments=SEVERAL)
    played = [
        (one, result_of(one, one_turn_episode(0.0, StopReason.ENVIRONMENT_ERROR)))
        for one in step_requests("job-1", job, 1)
    ]
    found = per_environment(job, played)
    assert not any(name.endswith("reward_mean") for name in found)
    assert found["environment/easy/failed_episodes"] == found["environment/easy/episodes"]


def test_reports_no_episodes_of_unplayed_environment():
    found = per_environment(spec(environments=SEVERAL), [])
    assert found["environment/easy/episodes"] == 0.0
