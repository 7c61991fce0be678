import pytest

from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.rollout.executors import InlineExecutor
from tinkergym.rollout.play_list import play
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.testing import RandomTokenSampler, RecordingSampler, byte_bundle, ledger_violations
from tinkergym.testing.faults import make_fault

RENDERER = Renderer.from_bundle(byte_bundle())


@pytest.fixture(scope="module")
def episode():
    plan = EpisodePlan(
        episode_id="e",
        seed=0,
        policy="p",
        environment=EnvironmentRef(id="Sound"),
        decoding=Decoding(max_turn_tokens=4),
    )
    sampler = RecordingSampler(RandomTokenSampler(RENDERER.vocab_size))
    (result,) = play(
        [plan], sampler=sampler, renderer=RENDERER, make_env=make_fault, executor=InlineExecutor()
    )
    return result.trajectory, sampler.session("e")


def altered(trajectory, **lists):
    """Return the trajectory with other lists in its only segment."""
    (segment,) = trajectory.segments
    return trajectory.model_copy(update={"segments": [segment.model_copy(update=lists)]})


def test_finds_no_violations_in_a_sound_record(episode):
    trajectory, session = episode
    assert len(trajectory.turns) == 3
    assert ledger_violations(trajectory, session.completions, session.requests) == []


def test_finds_changed_token(episode):
    trajectory, session = episode
    ids = list(trajectory.segments[0].token_ids)
    ids[trajectory.turns[1].start] ^= 1
    found = ledger_violations(altered(trajectory, token_ids=ids), session.completions, session.requests)
    assert any("turn 1: the tokens differ from the sampled ones" in text for text in found)
    assert any("turn 2: the tokens before it" in text for text in found)


def test_finds_changed_prompt(episode):
    trajectory, session = episode
    ids = list(trajectory.segments[0].token_ids)
    ids[0] ^= 1
    found = ledger_violations(altered(trajectory, token_ids=ids), session.completions, session.requests)
    assert len(found) == 3
    assert all("differ from its prompt" in text for text in found)


@pytest.mark.parametrize("turn", [0, -1])
def test_finds_wrong_mask(episode, turn):
    trajectory, session = episode
    place = trajectory.turns[turn].start
    mask = list(trajectory.segments[0].loss_mask)
    mask[place] = False
    found = ledger_violations(altered(trajectory, loss_mask=mask), session.completions)
    assert any(f"token {place}: loss_mask is False" in text for text in found)
    assert any("covers tokens that were not sampled" in text for text in found)


def test_finds_sampled_tokens_without_a_turn(episode):
    trajectory, session = episode
    short = trajectory.model_copy(update={"turns": trajectory.turns[:-1]})
    (text,) = ledger_violations(short, session.completions)
    assert "are in no turn" in text


def test_finds_another_answers_logprobs_and_version(episode):
    trajectory, session = episode
    other = session.completions[0].model_copy(
        update={"sampling_logprobs": [-9.0] * len(session.completions[0].token_ids), "policy_version": 7}
    )
    found = ledger_violations(trajectory, [other, *session.completions[1:]])
    assert len(found) == 2


def test_finds_more_turns_than_answers(episode):
    trajectory, session = episode
    assert ledger_violations(trajectory, session.completions[:1]) == [
        "there are 3 turns, but 1 answers were sampled"
    ]
