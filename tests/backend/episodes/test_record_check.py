"""Records that contradict themselves are refused where they are handed in; none of the loop's own is."""

import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from backend.episodes.record_check import require_sound
from backend.learner.sequences import TokenLimits
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.algorithms import GRPO, PPO
from tinkergym.errors import InvalidRequestError, UnsupportedPartError
from tinkergym.rollout.executors import InlineExecutor, ThreadExecutor
from tinkergym.rollout.play_list import play
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.events import ErrorView, JobState
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits
from tinkergym.schema.sampling import SampleFailure
from tinkergym.testing import RandomTokenSampler, family_bundle
from tinkergym.testing.faults import FAULTS, make_fault
from tinkergym.testing.made_up_episodes import one_turn_episode
from tinkergym.trajectory.content_parts import ImageSpan
from tinkergym.trajectory.trajectory import Segment, StopReason, Trajectory, Turn

LIMITS = TokenLimits(vocabulary=100, context_length=20)
RENDERERS = {name: Renderer.from_bundle(family_bundle(name)) for name in ("qwen", "llama", "mistral")}


def segment(mask, ids=None):
    return Segment(
        token_ids=ids or [1] * len(mask),
        loss_mask=[mark == "x" for mark in mask],
        sampling_logprobs=[-0.5 if mark == "x" else None for mark in mask],
    )


def turn(number, start, end):
    return Turn(
        segment=number,
        start=start,
        end=end,
        policy_version=0,
        finish_reason="stop",
        observation="o",
        action="a",
        reward=1.0,
    )


def record(segments, turns):
    trajectory = Trajectory(
        segments=[segment(one) if isinstance(one, str) else one for one in segments],
        turns=[turn(*place) for place in turns],
        terminated=True,
        truncated=False,
        stop_reason=StopReason.TERMINATED,
        seed=0,
    )
    return EpisodeResult(episode_id="job-1:1:0", lease_id="l", trajectories=[trajectory])


@pytest.mark.parametrize(
    ("segments", "turns"),
    [
        ([], []),
        (["..."], []),
        (["..xx.x"], [(0, 2, 4), (0, 5, 6)]),
        (["..xxx"], [(0, 2, 4), (0, 4, 5)]),
        ([".xx", "....", "..x."], [(0, 1, 3), (2, 2, 3)]),
    ],
)
def test_accepts_turns_that_cover_the_sampled_tokens(segments, turns):
    require_sound(record(segments, turns), LIMITS)


def test_bounds_a_seat_by_the_model_that_played_it():
    long = record(["." * 20 + "x"], [(0, 20, 21)])
    (trajectory,) = long.trajectories
    both = long.model_copy(
        update={"trajectories": [trajectory.model_copy(update={"agent": agent}) for agent in "xo"]}
    )
    longer = TokenLimits(vocabulary=100, context_length=21)
    with pytest.raises(InvalidRequestError) as caught:
        require_sound(both, LIMITS, seats={"o": longer})
    assert caught.value.field == "results.trajectories"
    with pytest.raises(InvalidRequestError) as caught:
        require_sound(both, longer, seats={"o": LIMITS})
    assert caught.value.field == "results.trajectories"
    require_sound(both, LIMITS, seats={"x": longer, "o": longer})


@pytest.mark.parametrize(
    ("segments", "turns", "words"),
    [
        ([".xx"], [(3, 1, 3)], "is in segment 3, but there are 1 segments"),
        ([".xx"], [(0, 0, 0)], r"the tokens \[0, 0\)"),
        ([".xx"], [(0, 3, 1)], r"the tokens \[3, 1\)"),
        ([".xx"], [(0, 1, 53)], r"the tokens \[1, 53\) of a segment"),
        ([".xx"], [(0, 0, 3)], "turn 0 contains tokens whose loss_mask is False"),
        ([".xx.x"], [(0, 1, 5)], "turn 0 contains tokens whose loss_mask is False"),
        ([".xx"], [(0, 1, 3), (0, 1, 3)], "turn 1 begins before the previous turn ends"),
        ([".xx"], [(0, 1, 3), (0, 2, 3)], "turn 1 begins before the previous turn ends"),
        ([".xx.x"], [(0, 4, 5), (0, 1, 3)], "turn 1 begins before the previous turn ends"),
        ([".x", ".x"], [(1, 1, 2), (0, 1, 2)], "turn 1 begins before the previous turn ends"),
        ([".xx.x"], [(0, 4, 5)], "2 of the sampled tokens are in no turn"),
        ([".xx.x"], [(0, 2, 3), (0, 4, 5)], "1 of the sampled tokens are in no turn"),
        ([".x", ".x"], [(1, 1, 2)], "1 of the sampled tokens are in no turn"),
        ([".x.x.x"], [(0, 1, 2)], "2 of the sampled tokens are in no turn"),
        ([".xx.xx"], [(0, 1, 3)], "2 of the sampled tokens are in no turn"),
        ([".xx", ".x"], [(0, 1, 3)], "1 of the sampled tokens are in no turn"),
        ([".xx"], [], "2 of the sampled tokens are in no turn"),
        ([segment(".x", [1, 100])], [(0, 1, 2)], r"outside \[0, 100\)"),
        ([segment(".x", [-1, 1])], [(0, 1, 2)], r"outside \[0, 100\)"),
        ([segment(".x", [2**62, 1])], [(0, 1, 2)], r"outside \[0, 100\)"),
        (["." * 20 + "x"], [(0, 20, 21)], "21 tokens, more than the model's context of 20"),
    ],
)
def test_rejects_self_contradicting_record_and_says_where(segments, turns, words):
    with pytest.raises(InvalidRequestError, match=words) as caught:
        require_sound(record(segments, turns), LIMITS)
    assert caught.value.field == "results.trajectories"


class Breaking:
    """Answers with random tokens, of any version, and now and then with an error."""

    def __init__(self, renderer, *, falls_silent):
        self.falls_silent = falls_silent
        self.sampler = RandomTokenSampler(renderer.vocab_size)
        self.thought = renderer.encode_answer("<think>x</think>")[:-1]

    def submit(self, requests, deliver):
        asked = [request for request in requests if not self.falls_silent or request.seed % 17 < 2]
        self.sampler.submit(
            asked, lambda answers: deliver([self.spoilt(*pair) for pair in zip(asked, answers, strict=True)])
        )

    def spoilt(self, request, answer):
        if request.seed % 7 == 6:
            error = ErrorView(type="PolicyVersionGoneError", message="gone")
            return SampleFailure(request_id=request.request_id, error=error)
        if request.seed % 7 == 5:
            return answer.model_copy(update={"sampling_logprobs": [float("nan")] * len(answer.token_ids)})
        ids = (
            [*self.thought, *answer.token_ids][: request.max_tokens] if request.seed % 2 else answer.token_ids
        )
        changes = {
            "token_ids": ids,
            "sampling_logprobs": [-1.0] * len(ids),
            "policy_version": request.seed % 3,
        }
        return answer.model_copy(update=changes)

    def close(self):
        pass


def played(name, kinds, limits, *, reasoning="keep", executor=None, seeds=(1,), falls_silent=False):
    plans = [
        EpisodePlan(
            episode_id=f"{kind}-{seed}",
            seed=seed,
            policy="p",
            environment=EnvironmentRef(id=kind),
            decoding=Decoding(max_turn_tokens=12, seed=17 * seed),
            limits=limits,
            reasoning=reasoning,
        )
        for kind in kinds
        for seed in seeds
    ]
    renderer = RENDERERS[name]
    return play(
        plans,
        sampler=Breaking(renderer, falls_silent=falls_silent),
        renderer=renderer,
        make_env=make_fault,
        executor=executor or ThreadExecutor(),
    )


QUICK = [kind for kind in FAULTS if not kind.startswith("Hangs") and kind != "Dies"]


@pytest.mark.usefixtures("end_hangs")
@pytest.mark.parametrize("name", RENDERERS)
def test_accepts_every_record_of_the_loop_whatever_ended_the_episode(name):
    bounds = TokenLimits(vocabulary=RENDERERS[name].vocab_size, context_length=RENDERERS[name].context_length)
    some_limits = [Limits(max_turns=4), Limits(max_episode_tokens=20), Limits(max_context_tokens=90)]
    reasons, segments = set(), set()
    results = [
        played(name, QUICK, limits, reasoning=reasoning, executor=InlineExecutor(4), seeds=range(8))
        for reasoning, limits in itertools.product(("keep", "drop"), some_limits)
    ]
    results.append(played(name, ["HangsInStep"], Limits(step_timeout_seconds=0.1)))
    results.append(played(name, ["NeverEnds"], Limits(episode_timeout_seconds=0.3), falls_silent=True))
    for result in itertools.chain(*results):
        require_sound(result, bounds)
        reasons.add(result.trajectory.stop_reason)
        segments.add(len(result.trajectory.segments))
    elsewhere = {StopReason.ABANDONED, StopReason.TOO_STALE, StopReason.TRUNCATED}
    of_games = {
        StopReason.CONTEXT_OVERFLOW,
        StopReason.SEAT_FAILED,
        StopReason.OPPONENT_FAILED,
        StopReason.GAME_TIMEOUT,
    }
    assert set(StopReason) - reasons <= elsewhere | of_games
    assert max(segments) > 1


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_rejects_records_with_a_moved_turn_or_dropped_token(data):
    mask, turns = "", []
    for given_tokens, sampled in data.draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=1)
    ):
        start = len(mask) + given_tokens
        turns.append((0, start, start + sampled))
        mask += "." * given_tokens + "x" * sampled
    bounds = TokenLimits(vocabulary=100, context_length=None)
    require_sound(record([mask], turns), bounds)
    chosen = data.draw(st.integers(0, len(turns) - 1))
    place = st.tuples(st.integers(0, 1), st.integers(0, len(mask) + 2), st.integers(0, len(mask) + 2))
    moved = data.draw(place)
    assume(moved != turns[chosen])
    with pytest.raises(InvalidRequestError):
        require_sound(record([mask], [*turns[:chosen], moved, *turns[chosen + 1 :]]), bounds)


def spoiled(result, how):
    trajectory = result.trajectory
    (first, *others), (segment, *_) = trajectory.turns, trajectory.segments
    changes = {
        "segment": {"turns": [first.model_copy(update={"segment": 3}), *others]},
        "empty": {"turns": [first.model_copy(update={"start": 0, "end": 0}), *others]},
        "end": {"turns": [first.model_copy(update={"end": first.end + 50}), *others]},
        "twice": {"turns": [first, first, *others]},
        "token": {"segments": [segment.model_copy(update={"token_ids": [10**9, *segment.token_ids[1:]]})]},
        "context": {"segments": [longer(segment)]},
    }
    return result.model_copy(update={"trajectories": [trajectory.model_copy(update=changes[how])]})


def longer(segment):
    more = 100_000
    return segment.model_copy(
        update={
            "token_ids": segment.token_ids + [1] * more,
            "loss_mask": segment.loss_mask + [False] * more,
            "sampling_logprobs": segment.sampling_logprobs + [None] * more,
        }
    )


@pytest.mark.parametrize("algorithm", [GRPO(group_size=2, groups_per_step=2), PPO(groups_per_step=4)])
def test_refuses_spoiled_records_and_continues_with_sound_ones(lab, algorithm):
    job_id = lab.start(steps=1, algorithm=algorithm)
    results = lab.play(lab.lease(job_id))
    for how in ("segment", "empty", "end", "twice", "token", "context"):
        for result in results:
            with pytest.raises(InvalidRequestError) as caught:
                lab.submit(job_id, [spoiled(result, how)])
            assert caught.value.field == "results.trajectories"
    assert lab.service.episodes(job_id, 1) == []
    assert lab.submit(job_id, results) == ["accepted"] * 4
    lab.until(job_id, lambda: lab.state(job_id).final)
    assert lab.state(job_id) is JobState.COMPLETED
    assert lab.events(job_id, "step")[0].turns == 4


def test_rejects_record_with_an_image_by_its_kind():
    one = one_turn_episode(1.0)
    images = [ImageSpan(sha256="ab" * 32, start=0, end=1)]
    segment = one.segments[0].model_copy(update={"images": images})
    result = EpisodeResult(
        episode_id="job-1:1:0", lease_id="l", trajectories=[one.model_copy(update={"segments": [segment]})]
    )
    with pytest.raises(UnsupportedPartError) as caught:
        require_sound(result, LIMITS)
    assert caught.value.field == "results.trajectories"
