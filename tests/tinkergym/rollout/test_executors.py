"""Where environments live changes nothing about their episodes; what goes wrong there is named."""

import threading
import time
from dataclasses import replace
from functools import partial

import pytest

from tests.tinkergym.rollout.processes import no_process_is_left_behind  # noqa: F401
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import InvalidRequestError
from tinkergym.registration.environments import make_environment
from tinkergym.rollout import executors
from tinkergym.rollout.executors import InlineExecutor, InlineHost, ProcessExecutor, ThreadExecutor
from tinkergym.rollout.play_list import play
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits
from tinkergym.testing import RandomTokenSampler, ScriptedSampler, byte_bundle
from tinkergym.testing.faults import HANG_SECONDS, HangsInStep, Sound, hangs_end, make_fault
from tinkergym.trajectory.trajectory import StopReason

RENDERER = Renderer.from_bundle(byte_bundle())


YES = ScriptedSampler(RENDERER, lambda prompt: "yes")


PATIENCE_SECONDS = 120.0
"""How long a call may take that is not meant to be cut: starting a process counts as one."""


EXECUTORS = {
    "inline": InlineExecutor,
    "thread": ThreadExecutor,
    "process": lambda: ProcessExecutor(2),
}


KINDS = {**EXECUTORS, "process": ProcessExecutor}


everywhere = pytest.mark.parametrize("executor", list(EXECUTORS))
mostly = pytest.mark.parametrize(
    "executor",
    [
        pytest.param(name, marks=[pytest.mark.full("starts processes")] if name == "process" else [])
        for name in EXECUTORS
    ],
)


def plans(environment, seeds, *, limits=None, **settings):
    return [
        EpisodePlan(
            episode_id=f"{environment}-{number}",
            seed=seed,
            policy="p",
            environment=EnvironmentRef(id=environment),
            decoding=Decoding(max_turn_tokens=8, seed=1000 * number),
            limits=limits or Limits(step_timeout_seconds=PATIENCE_SECONDS, max_turns=20),
            **settings,
        )
        for number, seed in enumerate(seeds)
    ]


def played(requests, executor, make_env=make_fault, sampler=YES, **settings):
    results = play(
        requests, sampler=sampler, renderer=RENDERER, make_env=make_env, executor=executor, **settings
    )
    return {result.episode_id: result.trajectory for result in results}


@mostly
def test_repeats_episode_by_seed_everywhere_whatever_else_is_played(executor):
    sampler = RandomTokenSampler(RENDERER.vocab_size)
    seeds = [3, 1, 4, 1, 5]
    expected = played(
        plans("board/TicTacToeVs-v0", seeds), InlineExecutor(1), make_environment, sampler, max_concurrent=1
    )
    requests = plans("board/TicTacToeVs-v0", seeds)
    assert played(requests, EXECUTORS[executor](), make_environment, sampler) == expected


WRONG = {
    "RaisesInReset": (StopReason.ENVIRONMENT_ERROR, "the board is missing"),
    "RaisesInStep": (StopReason.ENVIRONMENT_ERROR, "in go_wrong"),
    "LosesItsServer": (StopReason.ENVIRONMENT_ERROR, "the tool's server does not respond"),
    "PaysNaN": (StopReason.INVALID_REWARD, "nan"),
    "CannotScore": (StopReason.INVALID_REWARD, "the judge gave no score"),
    "NeverEnds": (StopReason.TURN_LIMIT, ""),
    "ReturnsGarbage": (StopReason.ENVIRONMENT_ERROR, "a tuple of 4"),
    "ReturnsTheUnsendable": (StopReason.ENVIRONMENT_ERROR, ""),
}


@everywhere
def test_names_what_goes_wrong_without_harming_other_episodes(executor):
    # A process takes its time to start, so there only what crosses the border in a way of its own.
    kinds = ["RaisesInStep", "CannotScore", "ReturnsTheUnsendable"] if executor == "process" else WRONG
    requests = [plan for kind in kinds for plan in plans(kind, [0, 1])]
    episodes = played(requests, EXECUTORS[executor]())
    for kind in kinds:
        reason, words = WRONG[kind]
        assert episodes[f"{kind}-0"].stop_reason is StopReason.TERMINATED
        assert episodes[f"{kind}-1"].stop_reason is reason
        assert words in episodes[f"{kind}-1"].error
    assert episodes["RaisesInStep-1"].error.startswith("Traceback")
    assert "environment_host.py" not in episodes["RaisesInStep-1"].error
    assert "environment_process.py" not in episodes["RaisesInStep-1"].error


class SaysThatItHangs(Sound):
    """Makes a file before it hangs in `step` or `reset`."""

    def __init__(self, file, call):
        self.file, self.call = file, call

    def start(self, options):
        text = super().start(options)
        if self.wrong and self.call == "reset":
            self.hang()
        return text

    def go_wrong(self):
        self.hang()

    def hang(self):
        assert self.file.touch() or hangs_end.wait(HANG_SECONDS)


def make_one_that_says_that_it_hangs(file, call, _):
    return SaysThatItHangs(file, call)


@pytest.mark.usefixtures("end_hangs")
@pytest.mark.parametrize(("executor", "call"), [("thread", "reset"), ("thread", "step"), ("process", "step")])
def test_frees_place_of_hanging_environment_that_is_left_or_killed(executor, call, tmp_path):
    # Room for one: the episodes behind the one that hangs can only be played if it loses its place.
    first, hanging, last = plans("hangs", [0, 1, 2])
    file, hangs = tmp_path / "hangs", []

    def clock():
        # Time passes, once, when it hangs, however long it takes to get there.
        if not hangs and file.exists():
            hangs.append(True)
        return time.monotonic() + 2 * PATIENCE_SECONDS * len(hangs)

    episodes = played(
        [first, hanging, last],
        KINDS[executor](1),
        partial(make_one_that_says_that_it_hangs, file, call),
        clock=clock,
    )
    hung = episodes.pop(hanging.episode_id)
    assert hung.stop_reason is StopReason.ENVIRONMENT_TIMEOUT
    assert "hangs_end.wait(HANG_SECONDS)" in hung.error
    assert {one.stop_reason for one in episodes.values()} == {StopReason.TERMINATED}


def test_fails_inline_episode_when_its_overlong_call_returns():
    class Slow(Sound):
        def go_wrong(self):
            time.sleep(0.03)

    sound, slow = plans("slow", [0, 1])
    hasty = replace(slow, limits=Limits(step_timeout_seconds=0.02))
    episodes = played([sound, hasty], InlineExecutor(), lambda reference: Slow())
    assert episodes["slow-0"].stop_reason is StopReason.TERMINATED
    assert episodes["slow-1"].stop_reason is StopReason.ENVIRONMENT_TIMEOUT
    assert "returned after" in episodes["slow-1"].error


def test_interrupts_program_inline():
    class Interrupted(Sound):
        def go_wrong(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        played(plans("interrupted", [1]), InlineExecutor(), lambda reference: Interrupted())


def test_starts_no_thread_inline():
    seen = set()

    class Noting(Sound):
        def go_wrong(self):
            seen.add(threading.current_thread())

    make = lambda reference: seen.add(threading.current_thread()) or Noting()  # noqa: E731
    played(plans("sound", range(20)), InlineExecutor(), make)
    assert seen == {threading.current_thread()}


@mostly
def test_never_more_environments_than_there_is_room_for(executor):
    made = []
    place = KINDS[executor](2)
    open_one = place.open

    def counted(make, report, *, name):
        made.append(name)
        return open_one(make, report, name=name)

    place.open = counted
    waiting = iter(plans("Sound", range(12)))
    taken = []
    requests = (taken.append(plan) or plan for plan in waiting)
    results = play(requests, sampler=YES, renderer=RENDERER, make_env=make_fault, executor=place)
    next(results)
    # Nothing is asked for before there is room for it.
    assert len(taken) < 12
    assert len(list(results)) == 11
    assert len(made) == 2


def test_gives_up_room_that_another_environment_holds_idle():
    episodes = played([*plans("Sound", [0, 2]), *plans("NeverEnds", [0, 2])], ThreadExecutor(1))
    assert {trajectory.stop_reason for trajectory in episodes.values()} == {StopReason.TERMINATED}


def test_places_each_episode_by_its_plan_without_callers_executor(monkeypatch):
    opened = []
    for kind in (ThreadExecutor, ProcessExecutor):
        monkeypatch.setattr(
            kind,
            "open",
            lambda self, *arguments, name: opened.append(type(self)) or InlineHost(*arguments, name=name),
        )
    played([*plans("Sound", [0]), *plans("NeverEnds", [0], executor="process")], None)
    assert opened == [ThreadExecutor, ProcessExecutor]


def test_plays_others_while_plans_wait_for_room(monkeypatch):
    monkeypatch.setattr(executors, "ProcessExecutor", lambda: ProcessExecutor(1))
    requests = [*plans("Sound", range(0, 10, 2), executor="process"), *plans("NeverEnds", [0])]
    order = [
        result.episode_id
        for result in play(requests, sampler=YES, renderer=RENDERER, make_env=make_fault, max_concurrent=6)
    ]
    # Before the last of them has room, though a busy machine may let it end after the first.
    assert order.index("NeverEnds-0") < 4
    order.remove("NeverEnds-0")
    assert order == [f"Sound-{number}" for number in range(5)]


def test_adds_waiting_processes_on_top_unless_number_is_given():
    default = ProcessExecutor()
    assert default.most_alive == 2 * default.capacity
    assert ProcessExecutor(3).most_alive == ProcessExecutor(3).capacity == 3


def test_rejects_executor_without_room():
    with pytest.raises(InvalidRequestError) as caught:
        ThreadExecutor(0)
    assert caught.value.field == "capacity"


@pytest.mark.usefixtures("end_hangs")
@mostly
def test_leaves_nothing_behind_of_abandoned_episodes(executor):
    # HangsInStep with an even seed is sound; the odd one is under way when the caller turns away.
    seeds = [0] if executor == "inline" else [0, 1]
    results = play(
        plans(HangsInStep.__name__, seeds),
        sampler=YES,
        renderer=RENDERER,
        make_env=make_fault,
        executor=EXECUTORS[executor](),
    )
    assert next(results).trajectory.stop_reason is StopReason.TERMINATED
    results.close()


class Flaky(Sound):
    """Fails in its first `failures` episodes, in whatever instance."""

    failures = 0

    def reply(self, action):
        if Flaky.failures:
            Flaky.failures -= 1
            raise ConnectionError("try again")
        return super().reply(action)


@pytest.mark.parametrize(("failures", "retries", "left"), [(0, 2, 0), (1, 2, 1), (2, 2, 2), (3, 2, 2)])
def test_replays_failed_episode_as_often_as_allowed(failures, retries, left):
    (expected,) = played(plans("sound", [5]), InlineExecutor(), lambda reference: Sound()).values()
    Flaky.failures = failures
    (trajectory,) = played(
        plans("sound", [5], retries=retries), ThreadExecutor(), lambda reference: Flaky()
    ).values()
    Flaky.failures = 0
    assert trajectory.retries == left
    if failures > retries:
        assert trajectory.stop_reason is StopReason.ENVIRONMENT_ERROR
    else:
        # The seeds are the same, so it is the episode it would have been.
        assert trajectory.model_copy(update={"retries": 0}) == expected


def test_keeps_late_answer_out_of_the_next_attempt():
    late, requests = [], []

    class Late:
        def submit(self, asked, deliver):
            answers = [YES._complete(request) for request in asked]
            requests.extend(request.request_id for request in asked)
            deliver([*late, *answers])
            late.extend(answers)

        def close(self):
            pass

    Flaky.failures = 1
    (trajectory,) = played(
        plans("sound", [5], retries=1), InlineExecutor(), lambda reference: Flaky(), Late()
    ).values()
    assert trajectory.completed
    assert len(set(requests)) == len(requests) == 4
