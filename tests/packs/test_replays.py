"""Episodes of all shipped environments, played again from their seeds and actions, token by token."""

import warnings
from functools import cache

import pytest

from backend.catalog.models import load_renderer_bundle
from tests.backend.vlm import NANO_VL
from tests.playable import can_play
from tests.tinkergym.rollout.walks import YES
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import InvalidRequestError, NotReplayableError
from tinkergym.evaluation.baselines import LegalPolicy, RandomTextPolicy, play_episode
from tinkergym.registration.environments import make
from tinkergym.registration.games import make_playable
from tinkergym.registration.packs import find_packs
from tinkergym.rollout.play_list import play
from tinkergym.rollout.recorded_start import NOT_REPLAYABLE, RecordedStart, Written, recorded_turns
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits
from tinkergym.testing import byte_bundle
from tinkergym.trajectory.content_parts import content_text

LONG = 2**17
RENDERER = Renderer.from_bundle(byte_bundle(context_length=LONG))
EPISODES = 1000
NAMES = sorted(name for pack in find_packs() for name in pack.environment_ids if can_play(name))
SEEN = "geometry/"
"""They show images, which need a model that sees."""


@cache
def renderer_for(name):
    if not name.startswith(SEEN):
        return RENDERER
    return Renderer.from_bundle(
        load_renderer_bundle("nano-vl", NANO_VL).model_copy(update={"context_length": LONG})
    )


def declares(name):
    """Whether an environment says that it cannot be replayed."""
    env = make(name)
    env.close()
    return NOT_REPLAYABLE in env.metadata


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
    renderer = renderer_for(name)
    sampler = RecordedStart(YES, {plan.session_id: given}, renderer.decode)
    (result,) = play([plan], sampler=sampler, renderer=renderer, make_env=make_env)
    return result.trajectory, sampler


def require_equal_replay(name, seed, make_env=make_playable):
    written = [Written.by_hand(text, renderer_for(name)) for text in actions(name, seed)]
    record, _ = play_with(written, name, seed, make_env)
    assert record.completed, record.error
    again, sampler = play_with(recorded_turns(record, len(record.turns)), name, seed, make_env)
    sampler.require_repeated("e")
    assert again == record


@pytest.mark.parametrize("name", ["board/TicTacToeVs-v0", "math/WordProblems-v0", "tabletop/LiarsDiceVs-v0"])
def test_replays_an_episode_token_by_token(name):
    require_equal_replay(name, 3)


@pytest.mark.full("plays more than 1,000 episodes of all shipped environments, each twice")
def test_replays_a_thousand_episodes_of_all_shipped_environments():
    equal, refused, different = 0, [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in NAMES:
            for seed in range(-(-EPISODES // len(NAMES))):
                try:
                    require_equal_replay(name, seed)
                    equal += 1
                except NotReplayableError as error:
                    refused.append((name, seed, str(error)))
                except AssertionError as error:
                    different.append((name, seed, str(error)[:200]))
    played = equal + len(refused) + len(different)
    print(f"{equal} of {played} episodes of {len(NAMES)} environments were equal: {different}")
    assert played >= EPISODES
    assert [one for one in refused if not declares(one[0])] == []
    assert equal + len(refused) >= 0.95 * played
