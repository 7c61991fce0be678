"""Evaluation on the way: on which versions, apart from training, also after a kill."""

from __future__ import annotations

import pytest

from backend.gateway.run_series import RunReader
from tests.backend.watched_jobs import Fickle
from tinkergym.algorithms import GRPO
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.evaluate_every import FIRST_HELD_OUT_SEED, EvaluateEvery
from tinkergym.schema.events import JobState
from tinkergym.schema.fixed_players import Scripted
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.seats import SharedWith, Train
from tinkergym.schema.parsing import parse_spec
from tinkergym.trajectory.trajectory import StopReason

FAST = GRPO(group_size=2, groups_per_step=2, learning_rate=0.02)


def evaluations(jobs, job_id):
    return jobs.events(job_id, "evaluation")


@pytest.mark.parametrize("settings", [{}, {"deterministic": True}, {"max_staleness": 1}])
def test_evaluates_every_nth_version_and_before_and_after_training(jobs, settings):
    job_id = jobs.start(steps=5, evaluate=EvaluateEvery(2, episodes=3), **settings)
    jobs.play_on(job_id)
    assert jobs.state(job_id) is JobState.COMPLETED
    done = evaluations(jobs, job_id)
    assert [(one.step, one.policy_version, one.name) for one in done] == [
        (step, step, "test/Fickle-v0") for step in (0, 2, 4, 5)
    ]
    assert all(
        (one.episodes, one.failed_episodes, one.low <= one.mean <= one.high) == (3, 0, True) for one in done
    )
    assert [step.episodes for step in jobs.events(job_id, "step")] == [4] * 5
    read = RunReader().evaluations(job_id, jobs.tenant.bodies_after)
    assert [one.step for one in read] == [0, 2, 4, 5]


def test_gives_equal_returns_an_honest_interval(jobs):
    environment = EnvironmentRef(id="test/Fickle-v0", kwargs={"pay": 0.0})
    job_id = jobs.start(steps=1, environment=environment, evaluate=EvaluateEvery(9, episodes=12))
    jobs.play_on(job_id)
    ends = [(one.low, one.high) for one in evaluations(jobs, job_id)]
    assert ends == [(0.0, pytest.approx(0.242, abs=1e-3))] * 2


def test_gives_held_out_episodes_own_seeds_and_the_asked_version(jobs):
    job_id = jobs.start(steps=1, evaluate=EvaluateEvery(1, episodes=2, temperature=0.5))
    requests = {}
    while len(requests) < 6:
        requests |= {request.episode_id: request for request in jobs.lease(job_id)}
    held_out = [request for name, request in requests.items() if "/evaluate:" in name]
    assert [request.seed for request in held_out] == [FIRST_HELD_OUT_SEED, FIRST_HELD_OUT_SEED + 1]
    assert all(request.seats["agent_0"].temperature == 0.5 for request in held_out)
    assert all(request.seed < FIRST_HELD_OUT_SEED for request in requests.values() if request not in held_out)


def test_learns_same_bits_with_evaluations_and_without(jobs):
    learned = []
    for evaluate in ([], [EvaluateEvery(1, episodes=3)]):
        job_id = jobs.start(steps=3, deterministic=True, evaluate=evaluate)
        jobs.play_on(job_id)
        learned.append(jobs.weights(job_id, 3))
    assert learned[0] == learned[1]


def test_replays_evaluation_that_a_kill_broke_off_and_counts_once(jobs):
    job_id = jobs.start(steps=3, keep_checkpoints=1, evaluate=EvaluateEvery(1, episodes=2))
    while jobs.service.job(job_id).step < 1:
        learned_from = [request for request in jobs.lease(job_id) if "/evaluate:" not in request.episode_id]
        if learned_from:
            jobs.submit(job_id, jobs.play(learned_from))
            jobs.until(job_id, lambda: jobs.service.job(job_id).step == 1)
    jobs.take_over(job_id)
    jobs.play_on(job_id)
    assert jobs.state(job_id) is JobState.COMPLETED
    assert [one.step for one in evaluations(jobs, job_id)] == [0, 1, 2, 3]


def test_keeps_and_names_the_best_versions_checkpoint(jobs):
    # The reward falls with every letter, and a negative rate teaches to write more of them.
    job_id = jobs.start(
        steps=4,
        keep_checkpoints=1,
        algorithm=FAST,
        environment={"id": "test/Fickle-v0", "kwargs": {"pay": 1.0}},
        evaluate=EvaluateEvery(1, episodes=2, env_kwargs={"pay": -1.0}),
    )
    jobs.play_on(job_id)
    done = evaluations(jobs, job_id)
    best = max(done, key=lambda one: (one.mean, -one.step))
    assert [one.step for one in done if one.best][-1] == best.step
    found = jobs.tenant.find_policy(PolicyRef.parse(f"{job_id}@best"))
    assert found.best_version == best.step
    kept = {view.step for view in jobs.tenant.checkpoints(job_id)}
    assert kept == {4, best.step} - {0}
    assert all(jobs.folder(view).is_dir() for view in jobs.tenant.checkpoints(job_id))


@pytest.mark.parametrize("best_by", ["worse", "worse/letters"])
def test_decides_best_version_by_the_evaluation_or_metric_named(jobs, best_by):
    plain, worse = (
        EvaluateEvery(1, episodes=2, name=name, env_kwargs={"pay": pay})
        for name, pay in (("plain", 0.0), ("worse", -1.0))
    )
    job_id = jobs.start(steps=2, algorithm=FAST, evaluate=[plain, worse], best_by=best_by)
    jobs.play_on(job_id)
    done = evaluations(jobs, job_id)
    assert all(one.metrics["letters"] == -one.mean for one in done if one.name == "worse")
    assert {one.name for one in done if one.best} == {"worse"}
    values = {
        one.step: one.metrics["letters"] if "/" in best_by else one.mean
        for one in done
        if one.name == "worse"
    }
    found = jobs.tenant.find_policy(PolicyRef.parse(f"{job_id}@best"))
    assert values[found.best_version] == max(values.values())


@pytest.mark.parametrize(
    ("best_by", "evaluate"), [("nobody", [EvaluateEvery(1, name="a")]), ("a", []), ("a/", [])]
)
def test_rejects_best_that_no_evaluation_decides(best_by, evaluate):
    settings = {"environment": {"id": "test/Fickle-v0"}, "steps": 1, "evaluate": evaluate}
    with pytest.raises(InvalidRequestError) as caught:
        parse_spec({**settings, "best_by": best_by})
    assert caught.value.field == "best_by"


@pytest.mark.parametrize(
    ("setting", "last", "reason"),
    [
        ({"target": -100.0}, 0, "the target"),
        ({"patience": 2, "env_kwargs": {"pay": 0.0}}, 2, "2 evaluations"),
    ],
)
def test_ends_job_early_when_its_evaluations_say_so(jobs, setting, last, reason):
    job_id = jobs.start(steps=50, deterministic=True, evaluate=EvaluateEvery(1, episodes=2, **setting))
    jobs.play_on(job_id)
    state = jobs.events(job_id, "state")[-1]
    assert state.state is JobState.COMPLETED
    assert reason in state.reason
    assert [one.step for one in evaluations(jobs, job_id)][-1] == last
    assert {view.step for view in jobs.tenant.checkpoints(job_id)} >= ({last} - {0})


def test_keeps_failed_episodes_out_of_every_figure(jobs):
    job_id = jobs.start(steps=1, evaluate=EvaluateEvery(1, episodes=4, env_kwargs={"failing": 1.0}))
    jobs.play_on(job_id)
    assert jobs.state(job_id) is JobState.COMPLETED
    assert {(one.episodes, one.failed_episodes, one.mean) for one in evaluations(jobs, job_id)} == {
        (4, 4, None)
    }


@pytest.mark.parametrize(
    "settings",
    [
        {"rollout": "script", "evaluate": EvaluateEvery(1)},
        {"evaluate": [EvaluateEvery(1), EvaluateEvery(2)]},
        {"rollout": "client", "evaluate": EvaluateEvery(1, "board/TicTacToe-v0")},
        {"evaluate": EvaluateEvery(1, "ws://127.0.0.1:1")},
        {"evaluate": [EvaluateEvery(1), EvaluateEvery(1, "ws://127.0.0.1:1", name="other")]},
        {
            "environment": {"id": "tinkergym/Remote-v0", "kwargs": {"url": "ws://127.0.0.1:1"}},
            "evaluate": EvaluateEvery(1, env_kwargs={"url": "ws://127.0.0.1:2"}),
        },
    ],
)
def test_rejects_evaluations_that_cannot_be_played(settings):
    with pytest.raises(InvalidRequestError):
        parse_spec({"environment": {"id": "test/Fickle-v0"}, "steps": 3, **settings})


def test_names_wrong_settings():
    for settings in ({"steps": 0}, {"steps": 1, "episodes": 0}, {"steps": 1, "seed": 2**32}, {"step": 3}):
        with pytest.raises(InvalidRequestError):
            EvaluateEvery(**settings)
    with pytest.raises(InvalidRequestError) as refused:
        EvaluateEvery(1, object())
    assert refused.value.field == "EvaluateEvery.environment"


def test_evaluates_job_on_written_data_in_environment_it_names(jobs, written_jobs):
    held_out = EvaluateEvery(2, "test/Fickle-v0", episodes=3, name="held out", target=1e6)
    job_id = written_jobs.start("sft", [{"prompt": "?", "completion": "yes"}] * 4, steps=3, evaluate=held_out)
    jobs.play_on(job_id)
    assert jobs.state(job_id) is JobState.COMPLETED, jobs.events(job_id, "state")[-1]
    assert [(one.step, one.name, one.episodes) for one in evaluations(jobs, job_id)] == [
        (0, "held out", 3),
        (2, "held out", 3),
        (3, "held out", 3),
    ]


class Own(Fickle):
    """An environment of a script, unknown to the service."""


def play_here(jobs, job_id):
    """Play the open episodes of a job in the script's environment; return how many there were."""
    requests = jobs.lease(job_id, wait_seconds=0.0)
    assert {request.environment.id for request in requests} <= {"local/Own-v0"}
    if requests:
        jobs.submit(job_id, jobs.play(requests, make_env=lambda ref: Own(**ref.kwargs)))
    return len(requests)


ROWS = [{"prompt": "?", "completion": "yes"}] * 4


def test_waits_for_client_in_its_evaluations_but_not_in_training(jobs, written_jobs):
    own = EvaluateEvery(1, Own, episodes=2, env_kwargs={"pay": 2.0})
    job_id = written_jobs.start("sft", ROWS, steps=3, keep_checkpoints=1, evaluate=own)
    jobs.until(job_id, lambda: jobs.service.job(job_id).step == 3)
    # A worker of the service gets none of them.
    assert jobs.lease("", worker_id="env-1", wait_seconds=0.0) == []
    assert (evaluations(jobs, job_id), jobs.state(job_id)) == ([], JobState.RUNNING)
    jobs.until(job_id, lambda: play_here(jobs, job_id) is not None and jobs.state(job_id).final)
    assert jobs.state(job_id) is JobState.COMPLETED
    done = evaluations(jobs, job_id)
    assert [(one.step, one.policy_version, one.name, one.episodes) for one in done] == [
        (step, step, "local/Own-v0", 2) for step in range(4)
    ]


def test_gives_place_up_while_evaluations_wait_for_client(make_jobs, written_in):
    jobs = make_jobs("parked", client_place_seconds=0.2)
    job_id = written_in(jobs).start("sft", ROWS, steps=2, evaluate=EvaluateEvery(2, Own, episodes=2))
    jobs.until(job_id, lambda: not jobs.service.held_jobs())
    view = jobs.tenant.get_job(job_id)
    assert (view.state, view.step) == (JobState.WAITING_FOR_CLIENT, 2)
    assert job_id in view.reason

    def attached():
        if not jobs.service.held_jobs():  # Also if it gave its place up again.
            jobs.service.client_came(job_id)
            jobs.start_job(job_id)
        play_here(jobs, job_id)
        return jobs.state(job_id).final

    jobs.until(job_id, attached)
    assert jobs.state(job_id) is JobState.COMPLETED
    assert [one.step for one in evaluations(jobs, job_id)] == [0, 2]


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "sft", "data": "0" * 64, "evaluate": [EvaluateEvery(1, Own), EvaluateEvery(1, "a/B-v0")]},
        {"kind": "rl", "environment": {"id": "test/Fickle-v0"}, "evaluate": EvaluateEvery(1, Own)},
    ],
    ids=["mixed", "of another"],
)
def test_rejects_script_environment_that_no_side_could_play(settings):
    with pytest.raises(InvalidRequestError) as refused:
        parse_spec({"steps": 3, **settings})
    assert refused.value.field.startswith("evaluate") or "evaluate" in refused.value.message


def test_keeps_class_in_the_process_and_sends_its_name():
    own = EvaluateEvery(1, Own)
    assert (own.source, own.environment) == (Own, "local/Own-v0")
    assert "source" not in own.model_dump_json()
    assert EvaluateEvery.model_validate_json(own.model_dump_json()).source is None


def test_rejects_job_on_written_data_that_names_no_environment():
    with pytest.raises(InvalidRequestError):
        parse_spec({"kind": "sft", "data": "0" * 64, "steps": 3, "evaluate": EvaluateEvery(2)})


GAME = {
    "environment": {"id": "board/TicTacToe-v0", "kwargs": {"on_illegal": "random"}},
    "sampling": {"max_turn_tokens": 4, "temperature": 3.0},
}


def held_out_of(jobs, job_id, count):
    """Lease so many episodes of evaluations, and play those of training that come before."""
    held_out = {}
    while len(held_out) < count:
        requests = jobs.lease(job_id)
        found = {one.episode_id: one for one in requests if "/evaluate:" in one.episode_id}
        held_out |= found
        if others := [one for one in requests if one.episode_id not in found]:
            jobs.submit(job_id, jobs.play(others))
    return list(held_out.values())


def test_evaluates_policy_of_several_seats_in_whole_mirrored_pairs(jobs):
    agents = {"x": Train(), "o": SharedWith("x")}
    evaluate = EvaluateEvery(2, episodes=3, against=Scripted("random"))
    job_id = jobs.start(**GAME, agents=agents, steps=1, evaluate=evaluate)
    requests = held_out_of(jobs, job_id, 4)
    seats = [{agent: seat.player for agent, seat in request.seats.items()} for request in requests]
    first = {"x": "evaluated", "o": "random"}, {"x": "random", "o": "evaluated"}
    assert seats == [*first, *first]
    assert [request.seed - FIRST_HELD_OUT_SEED for request in requests] == [0, 0, 1, 1]
    results = {result.episode_id: result for result in jobs.play(requests)}
    spoiled = results[requests[0].episode_id]
    record = spoiled.trajectories[0].model_copy(
        update={"stop_reason": StopReason.ENVIRONMENT_ERROR, "terminated": False, "truncated": False}
    )
    results[requests[0].episode_id] = spoiled.model_copy(update={"trajectories": [record]})
    jobs.submit(job_id, list(results.values()))
    jobs.play_on(job_id)
    before = evaluations(jobs, job_id)[0]
    assert (before.agent, before.step, before.episodes, before.failed_episodes) == ("x", 0, 4, 1)
    # The game that is the failed one's mirror would weigh its seat more than the other.
    whole = [results[request.episode_id].trajectories[0].episode_return for request in requests[2:]]
    assert before.mean == sum(whole) / 2


def test_counts_game_that_other_seat_ended_before_its_first_turn(jobs):
    evaluate = EvaluateEvery(2, episodes=2, against=Scripted("random"))
    job_id = jobs.start(**GAME, agents={"o": Train(), "x": Scripted("random")}, steps=1, evaluate=evaluate)
    requests = held_out_of(jobs, job_id, 2)
    won, other = jobs.play(requests)
    record = won.trajectories[0].model_copy(
        update={
            "turns": [],
            "segments": [],
            "early_reward": 1.0,
            "stop_reason": StopReason.TERMINATED,
            "terminated": True,
            "truncated": False,
        }
    )
    jobs.submit(job_id, [won.model_copy(update={"trajectories": [record]}), other])
    jobs.play_on(job_id)
    before = evaluations(jobs, job_id)[0]
    assert (before.agent, before.episodes, before.failed_episodes) == ("o", 2, 0)
    assert before.mean == (1.0 + other.trajectories[0].episode_return) / 2


def test_keeps_a_best_version_for_each_policy_of_a_job(jobs):
    agents = {"x": Train(), "o": Train()}
    evaluate = [
        EvaluateEvery(1, episodes=2, agent=agent, name=f"of {agent}", against=Scripted("random"))
        for agent in agents
    ]
    job_id = jobs.start(
        **GAME, agents=agents, steps=2, algorithm=FAST, keep_checkpoints=1, evaluate=evaluate, best_by="of o"
    )
    jobs.play_on(job_id)
    for agent in agents:
        own = [one for one in evaluations(jobs, job_id) if one.agent == agent]
        assert [one.name for one in own] == [f"of {agent}"] * 3
        best = max(own, key=lambda one: (one.mean, -one.step))
        assert jobs.tenant.find_policy(PolicyRef.parse(f"{job_id}/{agent}@best")).best_version == best.step
        assert {view.step for view in jobs.tenant.checkpoints(job_id, agent)} >= {2, best.step} - {0}


def play_paying(jobs, job_id, pay, until=lambda requests: False):
    """Play until the job has ended, or `until` its requests; the evaluation of version n pays `pay(n)`."""
    while not jobs.state(job_id).final:
        requests = jobs.lease(job_id, wait_seconds=0.5)
        if until(requests):
            return
        played = {result.episode_id: result for result in (jobs.play(requests) if requests else [])}
        for request in requests:
            if "/evaluate:" in request.episode_id:
                result = played[request.episode_id]
                turns = [
                    one.model_copy(update={"reward": pay(request.step)}) for one in result.trajectory.turns
                ]
                paid = result.trajectory.model_copy(update={"turns": turns})
                played[request.episode_id] = result.model_copy(update={"trajectories": [paid]})
        if played:
            jobs.submit(job_id, list(played.values()))


@pytest.mark.parametrize("kind", ["rl", "ahead", "sft"])
def test_keeps_early_stop_after_a_kill(jobs, written_jobs, kind):
    evaluate = EvaluateEvery(10**6, "test/Fickle-v0", episodes=2, target=1.0)
    if kind == "sft":
        rows = [{"prompt": "?", "completion": "yes"}] * 4
        job_id = written_jobs.start("sft", rows, steps=5000, evaluate=evaluate)
    else:
        ahead = int(kind == "ahead")
        job_id = jobs.start(
            steps=50,
            rollout="client",
            max_staleness=ahead,
            evaluate=EvaluateEvery(10**6, episodes=2, target=1.0),
        )

    def pay(version):
        return 5.0 if version == 0 else -5.0

    play_paying(
        jobs, job_id, pay, until=lambda some: any("/evaluate:" in r.episode_id and r.step for r in some)
    )
    done = jobs.service.job(job_id).step
    assert jobs.state(job_id) is JobState.RUNNING
    jobs.take_over(job_id)
    play_paying(jobs, job_id, pay)
    ended = jobs.events(job_id, "state")[-1]
    assert (ended.state, "version 0 reached" in ended.reason) == (JobState.COMPLETED, True)
    assert [one.step for one in jobs.events(job_id, "step")] == list(range(1, done + 1))
    assert [(one.step, one.mean) for one in evaluations(jobs, job_id)] == [(0, 5.0), (done, -5.0)]


def test_says_that_tasks_of_an_uncountable_split_are_drawn(jobs):
    wanted = [EvaluateEvery(1, split="test", episodes=2, name="split"), EvaluateEvery(1, episodes=2)]
    job_id = jobs.start(steps=1, evaluate=wanted)
    jobs.play_on(job_id)
    told = [one.name for one in jobs.events(job_id, "warning")]
    assert told.count("evaluation_draws_tasks") == 1
    assert {(one.name, one.drawn) for one in evaluations(jobs, job_id)} == {
        ("split", True),
        ("test/Fickle-v0", False),
    }
