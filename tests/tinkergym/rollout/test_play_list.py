import math
import threading

import gymnasium as gym
import pytest

from tests.tinkergym.rollout.walks import RENDERER, YES, Walk, plans, played
from tinkergym.rollout.play_list import play
from tinkergym.schema.episodes import EpisodeRequest, SeatPlan
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits, Sampling
from tinkergym.testing import RandomTokenSampler
from tinkergym.trajectory.trajectory import ONLY_AGENT, StopReason, Trajectory


def alone(env, plan, sampler=YES):
    """Return what becomes of one episode without anything else going on."""
    (trajectory,) = played([plan], lambda reference: env, sampler).values()
    return trajectory


def test_plays_every_episode_to_its_end():
    trajectories = played(plans(20))
    assert len(trajectories) == 20
    for number, trajectory in enumerate(trajectories[f"e{i}"] for i in range(20)):
        assert trajectory.seed == number
        assert trajectory.stop_reason is StopReason.TERMINATED
        assert [turn.action for turn in trajectory.turns] == ["yes"] * len(trajectory.turns)


@pytest.mark.parametrize("max_concurrent", [1, 7, 64])
def test_repeats_episode_by_seed_however_many_play_together(max_concurrent):
    sampler = RandomTokenSampler(RENDERER.vocab_size)
    expected = {plan.episode_id: alone(Walk(), plan, sampler) for plan in plans(12)}
    assert played(plans(12), sampler=sampler, max_concurrent=max_concurrent) == expected


def test_plays_requests_of_the_service_as_they_say():
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


def test_uses_the_environments_own_system_prompt():
    class Prompted(Walk):
        system_prompt = "Walk on."

    trajectories = played(plans(3), lambda reference: Prompted(), max_concurrent=1)
    for trajectory in trajectories.values():
        assert "Walk on." in RENDERER.decode(trajectory.segments[0].token_ids)


class Raises(Walk):
    def start(self, options):
        if self.np_random_seed % 2:
            raise KeyError("the cupboard is bare")
        return super().start(options)

    def reply(self, action):
        if self.np_random_seed % 4:
            raise ZeroDivisionError("by zero")
        return super().reply(action)


def test_ends_only_raising_environments_episode_with_its_traceback():
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


def test_tells_of_an_error_whose_text_is_not_unicode():
    def make_env(reference):
        raise RuntimeError("a file called \udce9")  # as os.fsdecode gives names that are not UTF-8

    (trajectory,) = played(plans(1), make_env).values()
    assert "a file called \\udce9" in trajectory.error
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory


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
def test_names_garbage_return_values(env, reason, words):
    trajectory = alone(env, plans(1)[0])
    assert trajectory.stop_reason is reason
    assert words in trajectory.error


def test_plays_hand_written_environment_without_options_and_spaces():
    class Bare(gym.Env):
        def reset(self, seed=None):
            return "go", {}

        def step(self, action):
            return "", 1, True, False, {}

    assert alone(Bare(), plans(1)[0]).episode_return == 1.0


def test_closes_environments_on_interrupt_in_the_driver():
    made, closed = [], []
    all_made = threading.Event()

    class Counted(Walk):
        def __init__(self):
            super().__init__()
            self.is_closed = threading.Event()
            made.append(self)
            if len(made) == 3:
                all_made.set()

        def reset(self, seed=None, options=None):
            all_made.wait()
            if self is not made[0]:  # Its call still runs when the interrupt comes.
                made[made.index(self) - 1].is_closed.wait()
            return super().reset(seed=seed, options=options)

        def close(self):
            closed.append(self)
            self.is_closed.set()

    class Interrupted:
        def submit(self, requests, deliver):
            raise KeyboardInterrupt

        def close(self):
            pass

    with pytest.raises(KeyboardInterrupt):
        played(plans(3), lambda reference: Counted(), Interrupted())
    # Those whose call was running end in their own time.
    assert all(one.is_closed.wait(60) for one in made)
    assert len(closed) == 3
