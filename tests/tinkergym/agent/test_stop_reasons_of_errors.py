"""What an error of the environment means for its episode."""

import pytest

import tinkergym as tg
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import EnvironmentInfrastructureError, InvalidRewardError
from tinkergym.rollout.play_list import play
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits
from tinkergym.testing import ScriptedSampler, byte_bundle
from tinkergym.trajectory.trajectory import StopReason

RENDERER = Renderer.from_bundle(byte_bundle())


class Failing(tg.TextEnv):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def start(self, options):
        return "go"

    def reply(self, action):
        raise self.error


@pytest.mark.parametrize(
    ("error", "stop_reason"),
    [
        (InvalidRewardError("the judge is silent"), StopReason.INVALID_REWARD),
        (EnvironmentInfrastructureError("the sandbox is gone"), StopReason.ENVIRONMENT_ERROR),
        (KeyError("board"), StopReason.ENVIRONMENT_ERROR),
    ],
)
def test_ends_episode_whose_step_raises_with_reason_and_no_signal(error, stop_reason):
    plan = EpisodePlan(
        episode_id="e",
        seed=0,
        policy="p",
        environment=EnvironmentRef(id="failing"),
        decoding=Decoding(max_turn_tokens=8, seed=0),
        limits=Limits(),
    )
    (result,) = play(
        [plan],
        sampler=ScriptedSampler(RENDERER, lambda prompt: "yes"),
        renderer=RENDERER,
        make_env=lambda reference: Failing(error),
    )
    trajectory = result.trajectory
    assert trajectory.stop_reason is stop_reason
    assert not trajectory.completed
    assert type(error).__name__ in trajectory.error
    assert str(error.args[0]) in trajectory.error
