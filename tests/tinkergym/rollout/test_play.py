import itertools
import math
import sqlite3
import threading

import gymnasium as gym
import pytest

import tinkergym as tg
from tinkergym.agent.plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import ServiceUnavailableError
from tinkergym.rollout.play import play
from tinkergym.schema.episodes import EpisodeRequest, SeatPlan
from tinkergym.schema.events import ErrorView
from tinkergym.schema.job_spec import EnvironmentRef, Limits, Sampling
from tinkergym.schema.sampling import Completion, SampleFailure
from tinkergym.testing import RandomTokenSampler, ScriptedSampler, byte_bundle
from tinkergym.trajectory.trajectory import ONLY_AGENT, StopReason, Trajectory

RENDERER = Renderer.from_bundle(byte_bundle())
YES = ScriptedSampler(RENDERER, lambda prompt: "yes")


class Walk(tg.TextEnv):
    """As many turns as the seed says; the reward is the answer's length."""

    def start(self, options):
        self.left = int(self.np_random.integers(1, 6))
        return f"{self.left} left, {options.get('task_index')}"

    def reply(self, action):
        self.left -= 1
        return f"{self.left} left, {int(self.np_random.integers(100))}", float(len(action)), self.left == 0


def plans(count, environment="walk", *, limits=None, **settings):
    return [
        EpisodePlan(
            episode_id=f"e{i}",
            seed=i,
            policy="p",
            environment=EnvironmentRef(id=environment),
            sampling_seed=1000 * i,
            max_turn_tokens=8,
            limits=limits or Limits(),
            **settings,
        )
        for i in range(count)
    ]


def played(requests, make_env=lambda reference: Walk(), sampler=YES, **settings):
    results = play(requests, sampler=sampler, renderer=RENDERER, make_env=make_env, **settings)
    return {result.episode_id: result.trajectory for result in results}


def alone(env, plan, sampler=YES):
    """Return what becomes of one episode without anything else going on."""
    (trajectory,) = played([plan], lambda reference: env, sampler).values()
    return trajectory


def test_every_episode_is_played_to_its_end():
    trajectories = played(plans(20))
    assert len(trajectories) == 20
    for number, trajectory in enumerate(trajectories[f"e{i}"] for i in range(20)):
        assert trajectory.seed == number
        assert trajectory.stop_reason is StopReason.TERMINATED
        assert [turn.action for turn in trajectory.turns] == ["yes"] * len(trajectory.turns)


@pytest.mark.parametrize("max_concurrent", [1, 7, 64])
def test_a_seed_gives_the_same_episode_however_many_are_played_at_once(max_concurrent):
    sampler = RandomTokenSampler(RENDERER.vocab_size)
    expected = {plan.episode_id: alone(Walk(), plan, sampler) for plan in plans(12)}
    assert played(plans(12), sampler=sampler, max_concurrent=max_concurrent) == expected


def test_requests_of_the_service_are_played_as_they_say():
    request = EpisodeRequest(
        job_id="j",
        episode_id="j:1:0",
        step=1,
        index=0,
        group=0,
        environment=EnvironmentRef(id="walk"),
        seed=5,
        task_index=7,
        seats={
            ONLY_AGENT: SeatPlan(
                policy="j",
                policy_version=2,
                model="bytes",
                sampling_seed=1,
                sampling=Sampling(max_turn_tokens=2),
                system_prompt="Answer.",
            )
        },
        limits=Limits(max_turns=1),
        lease_id="lease",
        lease_seconds=30,
    )
    models = []

    def renderer(model):
        models.append(model)
        return RENDERER

    (result,) = play([request], sampler=YES, renderer=renderer, make_env=lambda reference: Walk())
    assert models == ["bytes"]
    assert (result.episode_id, result.lease_id) == ("j:1:0", "lease")
    turn = result.trajectory.turns[0]
    assert (turn.action, turn.finish_reason, turn.policy_version) == ("ye", "length", 2)
    assert turn.observation.endswith("left, 7")
    assert "system\nAnswer." in RENDERER.decode(result.trajectory.segments[0].token_ids)


def test_the_environments_own_system_prompt_is_used():
    class Prompted(Walk):
        system_prompt = "Walk on."

    trajectories = played(plans(3), lambda reference: Prompted(), max_concurrent=1)
    for trajectory in trajectories.values():
        assert "Walk on." in RENDERER.decode(trajectory.segments[0].token_ids)


def test_environments_are_used_again_and_closed_once():
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


def test_an_environment_lives_in_one_thread():
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


class Raises(Walk):
    def start(self, options):
        if self.np_random_seed % 2:
            raise KeyError("the cupboard is bare")
        return super().start(options)

    def reply(self, action):
        if self.np_random_seed % 4:
            raise ZeroDivisionError("by zero")
        return super().reply(action)


def test_an_environment_that_raises_ends_its_episode_with_the_traceback_and_harms_no_other():
    trajectories = played(plans(12), lambda reference: Raises(), max_concurrent=5)
    for number in range(12):
        trajectory = trajectories[f"e{number}"]
        if number % 4 == 0:
            assert trajectory.stop_reason is StopReason.TERMINATED
            continue
        assert trajectory.stop_reason is StopReason.ENVIRONMENT_ERROR
        assert not trajectory.completed
        where, what = ("start", "the cupboard is bare") if number % 2 else ("reply", "by zero")
        assert "Traceback" in trajectory.error
        assert what in trajectory.error
        assert f"in {where}" in trajectory.error


def test_an_error_whose_text_is_no_unicode_is_told_all_the_same():
    def make_env(reference):
        raise RuntimeError("a file called \udce9")  # as os.fsdecode gives names that are not UTF-8

    (trajectory,) = played(plans(1), make_env).values()
    assert "a file called \\udce9" in trajectory.error
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_an_environment_that_cannot_be_made_ends_its_episode(error):
    def make_env(reference):
        raise error("no display")

    (trajectory,) = played(plans(1), make_env).values()
    assert trajectory.stop_reason is StopReason.ENVIRONMENT_ERROR
    assert "no display" in trajectory.error


@pytest.mark.parametrize("method", ["__init__", "start", "reply"])
def test_an_environment_that_hangs_loses_its_thread_and_harms_no_other(method):
    release, closed = threading.Event(), threading.Event()

    class Hangs(Walk):
        def close(self):
            closed.set()

    def hang(self, *arguments):
        release.wait()
        return None if method == "__init__" else ("", 0.0, True)

    setattr(Hangs, method, hang)
    limits = Limits(step_timeout_seconds=0.2)
    hanging = plans(1, "hangs", limits=limits)
    others = [plan for plan in plans(6, limits=limits) if plan.episode_id != "e0"]

    def make_env(reference):
        return Hangs() if reference.id == "hangs" else Walk()

    trajectories = played([*hanging, *others], make_env)
    release.set()
    hung = trajectories.pop("e0")
    assert hung.stop_reason is StopReason.ENVIRONMENT_TIMEOUT
    assert "did not return within 0.2 s" in hung.error
    assert "release.wait()" in hung.error
    assert {t.stop_reason for t in trajectories.values()} == {StopReason.TERMINATED}
    # The thread that came back after all closes what it had.
    assert closed.wait(timeout=30)


class Plain(gym.Env):
    """Hand-written, with whatever `step` and `reset` are told to return."""

    def __init__(self, start=("go", {}), then=("", 0.0, True, False, {})):
        self.returned = start, then

    def reset(self, *, seed=None, options=None):
        return self.returned[0]

    def step(self, action):
        return self.returned[1]


@pytest.mark.parametrize(
    ("env", "reason", "words"),
    [
        (
            Plain(start="go"),
            StopReason.ENVIRONMENT_ERROR,
            "reset must return a tuple of 2, but it returned str",
        ),
        (Plain(start=("go",)), StopReason.ENVIRONMENT_ERROR, "a tuple of 1"),
        (Plain(start=(4, {})), StopReason.ENVIRONMENT_ERROR, "observation must be a str"),
        (Plain(then=None), StopReason.ENVIRONMENT_ERROR, "step must return a tuple of 5"),
        (Plain(then=("", 0.0, True, {})), StopReason.ENVIRONMENT_ERROR, "a tuple of 4"),
        (Plain(then=("", math.nan, True, False, {})), StopReason.INVALID_REWARD, "nan"),
        (Plain(then=("", 1.0, "yes", False, {})), StopReason.ENVIRONMENT_ERROR, "terminated must be a bool"),
    ],
)
def test_garbage_return_values_are_named(env, reason, words):
    trajectory = alone(env, plans(1)[0])
    assert trajectory.stop_reason is reason
    assert words in trajectory.error


def test_a_hand_written_environment_without_options_and_spaces_is_played():
    class Bare(gym.Env):
        def reset(self, seed=None):
            return "go", {}

        def step(self, action):
            return "", 1, True, False, {}

    assert alone(Bare(), plans(1)[0]).episode_return == 1.0


def test_errors_while_closing_harm_nothing(caplog):
    class Sticky(Walk):
        def close(self):
            raise OSError("stuck")

    assert {t.stop_reason for t in played(plans(3), lambda reference: Sticky()).values()} == {"terminated"}
    assert "stuck" in caplog.text


def test_an_environment_that_failed_is_not_used_again():
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


class Sampler:
    """Answers with whatever a function makes of a request."""

    def __init__(self, answer):
        self.answer = answer

    def submit(self, requests, deliver):
        for request in requests:
            answer = self.answer(request)
            if answer is not None:
                deliver([answer])

    def close(self):
        pass


def test_a_failed_sample_ends_its_episode_with_the_samplers_error():
    def answer(request):
        if request.session_id == "e1":
            return SampleFailure(
                request_id=request.request_id, error=ErrorView(type="PolicyVersionGoneError", message="gone")
            )
        return YES._complete(request)

    trajectories = played(plans(3), sampler=Sampler(answer))
    assert trajectories["e1"].stop_reason is StopReason.SAMPLING_FAILED
    assert trajectories["e1"].error == "PolicyVersionGoneError: gone"
    assert {trajectories["e0"].stop_reason, trajectories["e2"].stop_reason} == {StopReason.TERMINATED}


def test_a_sampler_that_raises_fails_the_requests_it_was_given():
    def answer(request):
        raise ServiceUnavailableError("no engine")

    for trajectory in played(plans(3), sampler=Sampler(answer)).values():
        assert trajectory.stop_reason is StopReason.SAMPLING_FAILED
        assert trajectory.error == "ServiceUnavailableError: no engine"


def test_an_unusable_completion_ends_its_episode():
    def answer(request):
        return Completion(
            request_id=request.request_id,
            token_ids=[1, 2],
            sampling_logprobs=[-1.0],
            finish_reason="stop",
            policy_version=0,
        )

    (trajectory,) = played(plans(1), sampler=Sampler(answer)).values()
    assert trajectory.stop_reason is StopReason.SAMPLING_FAILED
    assert "2 tokens" in trajectory.error


def test_an_episode_whose_time_runs_out_while_waiting_for_an_answer_ends():
    limits = Limits(episode_timeout_seconds=0.1)
    (trajectory,) = played(plans(1, limits=limits), sampler=Sampler(lambda request: None)).values()
    assert trajectory.stop_reason is StopReason.EPISODE_TIMEOUT
    assert not trajectory.completed


def test_an_episode_whose_time_runs_out_between_turns_keeps_its_turns():
    class Endless(Walk):
        def reply(self, action):
            return "on and on", 1.0, False

    limits = Limits(episode_timeout_seconds=0.1, max_turns=10**9)
    patient = Renderer.from_bundle(byte_bundle(context_length=10**9))
    (result,) = play(
        plans(1, limits=limits), sampler=YES, renderer=patient, make_env=lambda reference: Endless()
    )
    trajectory = result.trajectory
    assert trajectory.stop_reason is StopReason.EPISODE_TIMEOUT
    assert trajectory.truncated
    assert trajectory.turns
    assert trajectory.sampled_tokens == sum(turn.end - turn.start for turn in trajectory.turns)


def test_answers_that_come_late_or_twice_are_ignored():
    late = []

    class Slow:
        def submit(self, requests, deliver):
            answers = [YES._complete(request) for request in requests]
            deliver(late + answers + answers)
            late.extend(answers)

        def close(self):
            pass

    assert {t.stop_reason for t in played(plans(5), sampler=Slow()).values()} == {StopReason.TERMINATED}


def test_requests_of_environments_that_answer_together_are_sampled_together():
    batches = []

    class Watching:
        def submit(self, requests, deliver):
            batches.append(len(requests))
            YES.submit(requests, deliver)

        def close(self):
            pass

    trajectories = played(plans(64), sampler=Watching())
    turns = sum(len(trajectory.turns) for trajectory in trajectories.values())
    assert sum(batches) == turns
    assert len(batches) < turns / 2


def test_an_interrupt_in_the_driver_closes_the_environments():
    closed = []

    class Counted(Walk):
        def close(self):
            closed.append(self)

    class Interrupted:
        def submit(self, requests, deliver):
            raise KeyboardInterrupt

        def close(self):
            pass

    with pytest.raises(KeyboardInterrupt):
        played(plans(3), lambda reference: Counted(), Interrupted())
    assert len(closed) == 3


def test_requests_are_taken_as_places_become_free():
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
