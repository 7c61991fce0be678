"""Every reason an episode can end for, each brought about by playing one."""

import threading
import time

import pytest

from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.rollout.executors import ThreadExecutor
from tinkergym.rollout.play_list import play
from tinkergym.schema.events import ErrorView
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits
from tinkergym.schema.sampling import SampleFailure
from tinkergym.testing import RecordingSampler, ScriptedSampler, byte_bundle, ledger_violations
from tinkergym.testing.faults import HangsInStep, Sound, make_fault
from tinkergym.trajectory.trajectory import COMPLETED_REASONS, FAILED_REASONS, StopReason

RENDERER = Renderer.from_bundle(byte_bundle(context_length=100_000))


passes = threading.Event()
"""Lets more time pass than an episode has."""


class Silent:
    """Never answers."""

    def submit(self, requests, deliver):
        passes.set()

    def close(self):
        pass


class Refusing(Silent):
    """Answers every request with an error."""

    def submit(self, requests, deliver):
        error = ErrorView(type="PolicyVersionGoneError", message="gone", hint="ask again")
        deliver([SampleFailure(request_id=request.request_id, error=error) for request in requests])


class TakesTooLong(HangsInStep):
    """Hangs in its first step."""

    def go_wrong(self):
        passes.set()
        super().go_wrong()


class OutOfTime(Sound):
    """Says itself that its time is over."""

    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        return observation, reward, False, True, info


OWN = {kind.__name__: kind for kind in (TakesTooLong, OutOfTime)}

YES = ScriptedSampler(RENDERER, lambda prompt: "yes")

# What is played, under which limits, who answers; then the turns that remain, and words of the error.
CASES = {
    StopReason.TERMINATED: ("Sound", {}, YES, 3, ""),
    StopReason.TRUNCATED: ("OutOfTime", {}, YES, 1, ""),
    StopReason.TURN_LIMIT: ("NeverEnds", {"max_turns": 2}, YES, 2, ""),
    StopReason.TOKEN_LIMIT: ("NeverEnds", {"max_episode_tokens": 6}, YES, 2, ""),
    StopReason.CONTEXT_LIMIT: (
        "NeverEnds",
        {"max_context_tokens": 80},
        YES,
        2,
        "limits.max_context_tokens 80",
    ),
    StopReason.EPISODE_TIMEOUT: ("Sound", {}, Silent(), 0, "ran out"),
    StopReason.ENVIRONMENT_ERROR: ("RaisesInStep", {}, YES, 1, "fell off the board"),
    StopReason.ENVIRONMENT_TIMEOUT: ("TakesTooLong", {}, YES, 1, "did not return"),
    StopReason.INVALID_REWARD: ("PaysNaN", {}, YES, 1, "nan"),
    StopReason.SAMPLING_FAILED: ("Sound", {}, Refusing(), 0, "PolicyVersionGoneError: gone (ask again)"),
}


def test_has_a_case_for_every_reason_except_those_from_others():
    others = {StopReason.ABANDONED, StopReason.TOO_STALE}
    of_games = {
        StopReason.CONTEXT_OVERFLOW,
        StopReason.SEAT_FAILED,
        StopReason.OPPONENT_FAILED,
        StopReason.GAME_TIMEOUT,
    }
    assert set(StopReason) - set(CASES) == others | of_games
    assert set(StopReason) - COMPLETED_REASONS - FAILED_REASONS == others


@pytest.mark.usefixtures("end_hangs")
@pytest.mark.parametrize("reason", CASES, ids=str)
def test_ends_an_episode_for_this_reason(reason):
    environment, limits, policy, turns, words = CASES[reason]
    plan = EpisodePlan(
        episode_id="e",
        seed=1,
        policy="p",
        environment=EnvironmentRef(id=environment),
        limits=Limits(**limits),
    )
    sampler = RecordingSampler(policy)
    passes.clear()
    (result,) = play(
        [plan],
        sampler=sampler,
        renderer=RENDERER,
        make_env=lambda reference: OWN[reference.id]() if reference.id in OWN else make_fault(reference),
        executor=ThreadExecutor(),
        clock=lambda: time.monotonic() + 10_000 * passes.is_set(),
    )
    trajectory, session = result.trajectory, sampler.session("e")
    assert trajectory.stop_reason is reason
    assert len(trajectory.turns) == turns
    assert words in trajectory.error
    assert trajectory.terminated == (reason is StopReason.TERMINATED)
    assert trajectory.truncated == (reason in COMPLETED_REASONS - {StopReason.TERMINATED})
    assert trajectory.completed == (reason in COMPLETED_REASONS and turns > 0)
    assert trajectory.failed == (reason in FAILED_REASONS)
    assert ledger_violations(trajectory, session.completions, session.requests) == []
