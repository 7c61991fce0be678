import itertools
import sqlite3
import threading
import time
from dataclasses import replace

import pytest

from tests.tinkergym.rollout.walks import RENDERER, YES, Walk, plans, played
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.rollout.executors import ThreadExecutor
from tinkergym.rollout.play_list import play
from tinkergym.rollout.player import EpisodePlayer
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits
from tinkergym.tasks.jsonl import JsonlTasks
from tinkergym.trajectory.trajectory import StopReason


def test_reuses_environments_and_closes_them_once():
    made, closed = [], []

    class Counted(Walk):
        def close(self):
            closed.append(self)

    def make_env(reference):
        made.append(Counted())
        return made[-1]

    played(plans(6), make_env, max_concurrent=3)
    assert len(made) == 3
    assert set(map(id, closed)) == set(map(id, made))


@pytest.mark.parametrize(("most_alive", "made"), [(1, 4), (2, 2)])
def test_keeps_turn_taking_environments_while_executor_has_room(most_alive, made):
    # One at a time: of two, either may end first.
    executor = ThreadExecutor(1)
    executor.most_alive = most_alive
    names = []

    def make_env(reference):
        names.append(reference.id)
        return Walk()

    in_turns = [
        replace(plan, episode_id=f"{number}-{plan.episode_id}")
        for number, name in enumerate("abab")
        for plan in plans(2, name)
    ]
    played(in_turns, make_env, executor=executor)
    assert len(names) == made


def test_keeps_an_environment_in_one_thread():
    class Stored(Walk):
        def __init__(self):
            # SQLite refuses the use of a connection in another thread.
            self.database = sqlite3.connect(":memory:")

        def start(self, options):
            self.database.execute("select 1")
            return super().start(options)

        def reply(self, action):
            self.database.execute("select 1")
            return super().reply(action)

        def close(self):
            self.database.close()

    reasons = {
        t.stop_reason for t in played(plans(10), lambda reference: Stored(), max_concurrent=4).values()
    }
    assert reasons == {StopReason.TERMINATED}


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_ends_episode_of_unmakeable_environment(error):
    def make_env(reference):
        raise error("no display")

    (trajectory,) = played(plans(1), make_env).values()
    assert trajectory.stop_reason is StopReason.ENVIRONMENT_ERROR
    assert "no display" in trajectory.error


@pytest.mark.parametrize("method", ["__init__", "start", "reply"])
def test_loses_only_its_thread_by_an_environment_that_hangs(method):
    hangs, release, closed = threading.Event(), threading.Event(), threading.Event()

    class Hangs(Walk):
        def close(self):
            closed.set()

    def hang(self, *arguments):
        assert hangs.set() or release.wait(60)
        return None if method == "__init__" else ("", 0.0, True)

    setattr(Hangs, method, hang)
    limits = Limits(step_timeout_seconds=20)
    hanging = plans(1, "hangs", limits=limits)
    others = [plan for plan in plans(6) if plan.episode_id != "e0"]

    def make_env(reference):
        return Hangs() if reference.id == "hangs" else Walk()

    # Its time passes once it hangs and nothing else runs, however long it takes to get there.
    trajectories = {}
    player = EpisodePlayer(
        sampler=YES,
        make_env=make_env,
        executor=ThreadExecutor(),
        clock=lambda: time.monotonic() + 30 * (len(trajectories) == len(others) and hangs.is_set()),
    )
    for plan in (*hanging, *others):
        player.start(plan, RENDERER)
    while player.active:
        trajectories |= {result.episode_id: result.trajectory for result in player.poll(1.0)}
    player.close()
    release.set()
    hung = trajectories.pop("e0")
    assert hung.stop_reason is StopReason.ENVIRONMENT_TIMEOUT
    assert "did not return within 20" in hung.error
    assert "release.wait(60)" in hung.error
    assert {t.stop_reason for t in trajectories.values()} == {StopReason.TERMINATED}
    # The thread that came back after all closes what it had.
    assert closed.wait(timeout=60)


def test_harms_nothing_by_errors_while_closing(said_by):
    class Sticky(Walk):
        def close(self):
            raise OSError("stuck")

    assert {t.stop_reason for t in played(plans(3), lambda reference: Sticky()).values()} == {"terminated"}
    assert any("stuck" in one for one in said_by("tinkergym.rollout.environment_host"))


def test_does_not_reuse_an_environment_that_failed():
    made = []

    class Once(Walk):
        def reply(self, action):
            raise ValueError("broken for good")

    def make_env(reference):
        made.append(Once() if len(made) == 0 else Walk())
        return made[-1]

    reasons = [t.stop_reason for t in played(plans(4), make_env, max_concurrent=1).values()]
    assert reasons == ["environment_error"] + ["terminated"] * 3
    assert len(made) == 2


def test_takes_requests_as_places_become_free():
    endless = (plan for number in itertools.count() for plan in plans(1))
    results = play(
        (
            EpisodePlan(episode_id=f"n{i}", seed=i, policy="p", environment=EnvironmentRef(id="w"))
            for i, _ in enumerate(endless)
        ),
        sampler=YES,
        renderer=RENDERER,
        make_env=lambda reference: Walk(),
        max_concurrent=2,
    )
    assert len(list(itertools.islice(results, 10))) == 10
    results.close()


def test_plays_only_data_that_job_recorded(tmp_path):
    class Reading(Walk):
        def __init__(self):
            self.tasks = JsonlTasks(tmp_path / "rows")

    (tmp_path / "rows").write_text('{"a": 1}\n')
    known = JsonlTasks(tmp_path / "rows").fingerprint
    recorded = [replace(plan, data_sha256=known) for plan in plans(2)]
    assert {one.stop_reason for one in played(recorded, lambda reference: Reading()).values()} == {
        StopReason.TERMINATED
    }
    (tmp_path / "rows").write_text('{"a": 2}\n')
    lost = played(recorded, lambda reference: Reading()).values()
    assert {one.stop_reason for one in lost} == {StopReason.ENVIRONMENT_ERROR}
    assert all(known[:12] in one.error for one in lost)
    assert {one.stop_reason for one in played(plans(1), lambda reference: Reading()).values()} == {
        StopReason.TERMINATED
    }
