"""Episodes of all shipped environments, played again from their seeds and actions, token by token."""

import warnings

import pytest

from tests.playable import can_play
from tests.tinkergym.rollout.walks import YES
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import InvalidRequestError
from tinkergym.evaluation.baselines import LegalPolicy, RandomTextPolicy, play_episode
from tinkergym.registration.environments import make
from tinkergym.registration.games import make_playable
from tinkergym.registration.packs import find_packs
from tinkergym.rollout.play_list import play
from tinkergym.rollout.recorded_start import RecordedStart, Written, recorded_turns
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits
from tinkergym.testing import byte_bundle
from tinkergym.trajectory.content_parts import content_text

RENDERER = Renderer.from_bundle(byte_bundle(context_length=2**17))
NAMES = sorted(name for pack in find_packs() for name in pack.environment_ids if can_play(name))
SEEN = ("geometry/",)
"""They show images, which need a model that sees."""


def actions(name, seed):
    """What a policy without a model does in an episode: legal actions where they are known."""
    env = make(name)
    try:
        record = play_episode(env, LegalPolicy(env), seed=seed, most_turns=20)
    except InvalidRequestError:
        record = play_episode(env, RandomTextPolicy(), seed=seed, most_turns=20)
    env.close()
    return [content_text(turn.action) for turn in record.turns]


def play_with(given, name, seed, make_env=make_playable):
    """Play an episode whose answers are known; return its record and the sampler."""
    plan = EpisodePlan(
        episode_id="e",
        seed=seed,
        policy="p",
        environment=EnvironmentRef(id=name),
        decoding=Decoding(max_turn_tokens=4096),
        limits=Limits(max_turns=max(1, len(given))),
    )
    sampler = RecordedStart(YES, {plan.session_id: given}, RENDERER.decode)
    (result,) = play([plan], sampler=sampler, renderer=RENDERER, make_env=make_env)
    return result.trajectory, sampler


def require_equal_replay(name, seed, make_env=make_playable):
    written = [Written.by_hand(text, RENDERER) for text in actions(name, seed)]
    record, _ = play_with(written, name, seed, make_env)
    assert record.completed, record.error
    again, sampler = play_with(recorded_turns(record, len(record.turns)), name, seed, make_env)
    sampler.require_repeated("e")
    assert again == record


@pytest.mark.parametrize("name", ["board/TicTacToeVs-v0", "math/WordProblems-v0", "tabletop/LiarsDiceVs-v0"])
def test_replays_an_episode_token_by_token(name):
    require_equal_replay(name, 3)


@pytest.mark.full("plays each shipped environment")
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(SEEN)])
def test_replays_every_shipped_environment(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(4):
            require_equal_replay(name, seed)
