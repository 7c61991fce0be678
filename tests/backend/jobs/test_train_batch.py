from __future__ import annotations

from functools import partial
from typing import Literal

import numpy as np
import pytest

from backend.episodes.episode_requests import step_requests
from backend.jobs.learn_phase import loss_of
from backend.jobs.train_batch import train_batch
from backend.learner.aggregation import token_weights
from backend.learner.sequences import BatchTotals
from tests.backend.jobs.played_episodes import batch, episode, half, job, never
from tests.backend.seats import result_of, two_seats
from tinkergym.algorithms import GRPO, PPO, Credits, DrGRPO, ReinforcePlusPlus, RunningBaseline
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits
from tinkergym.trajectory.content_parts import ImageSpan
from tinkergym.trajectory.trajectory import Segment, StopReason

GOOD, BAD = episode((1.0, 2, "stop"), (3.0, 1, "stop")), episode((0.0, 2, "stop"), (0.0, 2, "stop"))

LESS = episode((0.5, 2, "stop"), (0.0, 1, "stop"))


PAIR = {"group_size": 2, "groups_per_step": 1}


def seated(agent, trajectory):
    return trajectory.model_copy(update={"agent": agent})


def two_seat_batch(
    *pairs, policies=("job-1", "job-1"), policy=None, algorithm=GRPO, values=never, **settings
):
    spec = job(algorithm(group_size=len(pairs), groups_per_step=1), **settings)
    requests = [two_seats(request, policies) for request in step_requests("job-1", spec, 1)]
    played = [
        (request, result_of(request, seated("x", x), seated("o", o)))
        for request, (x, o) in zip(requests, pairs, strict=True)
    ]
    return train_batch(spec, 1, played, reference=never, values=values, policy=policy)


def test_compares_a_seat_with_neighbours_of_its_own_kind_only():
    found = two_seat_batch((GOOD, BAD), (BAD, BAD))
    # `x` earned 4 and 0; `o` twice 0, which is no worse than what its own group earned.
    assert [s.advantage for s in found.sequences] == [2.0, -2.0, 0.0, 0.0]
    assert found.groups == [0, 0, 1, 1]
    assert (found.metrics["compared_groups"], found.metrics["zero_variance_groups"]) == (2, 1)


class Miscounting(GRPO):
    name: Literal["grpo"] = "grpo"
    many: int = 0

    def credits(self, step):
        return Credits([None] * self.many)


@pytest.mark.parametrize("many", [0, 3])
def test_refuses_credits_of_too_many_or_too_few_seats(many):
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "algorithm.name"):
        batch(GOOD, BAD, algorithm=Miscounting(**PAIR, many=many))


@pytest.mark.parametrize(
    "algorithm",
    [
        partial(GRPO, baseline="batch"),
        ReinforcePlusPlus,
        partial(ReinforcePlusPlus, baseline="group"),
        partial(GRPO, baseline="batch", credit="turn"),
    ],
    ids=["batch", "reinforce++", "reinforce++_baseline", "turn"],
)
def test_never_averages_seats_of_one_policy_in_batch_wide_algorithms(algorithm):
    # `x` always earns more than `o`: its game is easier, its play no better.
    pairs = [(one, other) for one in (GOOD, BAD) for other in (LESS, BAD)]
    alone = [
        batch(*own, algorithm=algorithm(group_size=4, groups_per_step=1)) for own in zip(*pairs, strict=True)
    ]
    both = two_seat_batch(*pairs, algorithm=algorithm)
    expected = [sequence.advantage for own in alone for sequence in own.sequences]
    assert [sequence.advantage for sequence in both.sequences] == expected


def test_whitens_advantages_of_each_seat_for_itself_in_ppo():
    found = two_seat_batch((GOOD, LESS), (BAD, BAD), algorithm=PPO, values=expecting(0.0))
    for own in (found.sequences[:2], found.sequences[2:]):
        advantages = np.concatenate([np.asarray(one.advantage)[one.loss_mask] for one in own])
        assert abs(advantages.mean()) < 1e-6


@pytest.mark.parametrize(
    "algorithm", [GRPO, partial(GRPO, credit="turn"), RunningBaseline, partial(PPO, whiten_advantages=False)]
)
def test_permutes_what_each_seat_earned_separately_as_control(algorithm):
    # `x` wins every game and `o` loses it: permuted across seats, `x` would be told that it lost some.
    won, lost = (episode((reward, 1, "stop")) for reward in (1.0, -1.0))
    for seed in range(4):
        settings = {"algorithm": algorithm, "values": expecting(0.0), "seed": seed}
        plain, shuffled = (
            two_seat_batch(*[(won, lost)] * 6, **settings, shuffle_rewards=on) for on in (False, True)
        )
        assert [s.advantage for s in shuffled.sequences] == [s.advantage for s in plain.sequences]


def test_learns_only_from_the_policys_own_seats():
    pairs = (GOOD, episode((0.0, 3, "stop"))), (BAD, episode((1.0, 3, "stop")))
    black = two_seat_batch(*pairs, policies=("black", "white"), policy="black")
    assert [s.advantage for s in black.sequences] == [2.0, -2.0]
    white = two_seat_batch(*pairs, policies=("black", "white"), policy="white")
    assert [s.advantage for s in white.sequences] == [-0.5, 0.5]
    assert two_seat_batch(*pairs, policies=("black", "white"), policy="red").sequences == []


@pytest.mark.parametrize("algorithm", [GRPO(**PAIR), GRPO(**PAIR, credit="turn")], ids=["episode", "turn"])
def test_masks_completion_that_came_to_nothing_by_anothers_failure(algorithm):
    turns = [GOOD.turns[0], GOOD.turns[1].model_copy(update={"void": True, "reward": 0.0})]
    cut = GOOD.model_copy(update={"turns": turns, "stop_reason": StopReason.SEAT_FAILED})
    found = batch(cut, BAD, algorithm=algorithm, on_failure="keep")
    first, other = found.sequences
    assert first.loss_mask == [False, False, True, True, False, False, False]
    assert first.sampling_logprobs == [None, None, -1.0, -1.1, None, None, None]
    assert sum(other.loss_mask) == 4
    # What the first answer had earned stays its own.
    assert first.advantage == (0.5 if algorithm.credit == "episode" else [0, 0, 0.5, 0.5, 0, 0, 0])


def test_sends_images_to_learner_with_their_places():
    image = ImageSpan(sha256="ab" * 32, start=0, end=1)
    segment = GOOD.segments[0].model_copy(update={"images": [image]})
    found = batch(GOOD.model_copy(update={"segments": [segment]}), BAD)
    assert [list(sequence.images) for sequence in found.sequences] == [[image], []]


@pytest.mark.parametrize(
    ("limits", "context_length", "most"),
    [
        ({}, 512, 32),  # four answers of eight tokens
        ({"max_episode_tokens": 20}, 512, 20),
        ({"max_episode_tokens": 40}, 512, 32),
        ({"max_context_tokens": 12}, 512, 12),
        ({"max_context_tokens": 40}, 512, 32),
        ({}, 10, 10),
        ({"max_context_tokens": 12}, 10, 10),
        ({"max_episode_tokens": 20, "max_context_tokens": 12}, 512, 12),
        ({"max_episode_tokens": 9, "max_context_tokens": 12}, 10, 9),
    ],
)
def test_divides_constant_loss_by_most_sampled_tokens(limits, context_length, most):
    spec = job(DrGRPO(**PAIR), limits=Limits(max_turns=4, **limits))
    loss = loss_of(spec, context_length)
    assert (loss.aggregation, loss.constant_tokens) == ("constant", most)


def test_learns_from_or_drops_cut_off_completions_as_declared():
    cut = episode((1.0, 2, "stop"), (1.0, 3, "length"))
    assert sum(batch(cut, BAD).sequences[0].loss_mask) == 5
    found = batch(cut, BAD, algorithm=GRPO(**PAIR, mask_truncated=True))
    assert found.sequences[0].loss_mask == [False, False, True, True] + [False] * 5
    assert [p is None for p in found.sequences[0].sampling_logprobs] == [
        not m for m in found.sequences[0].loss_mask
    ]
    assert found.sequences[0].advantage == 1.0  # its reward counts all the same
    assert found.metrics["truncated_fraction"] == 0.25
    only_cut = episode((5.0, 3, "length"))
    assert len(batch(only_cut, BAD, algorithm=GRPO(**PAIR, mask_truncated=True)).sequences) == 1


def test_never_trains_a_token_that_was_not_sampled():
    for algorithm in (GRPO(**PAIR), GRPO(**PAIR, credit="turn"), GRPO(**PAIR, mask_truncated=True)):
        for sequence in batch(GOOD, BAD, algorithm=algorithm).sequences:
            prompt = [i for i, t in enumerate(sequence.token_ids) if t in {1, 2}]
            assert not any(sequence.loss_mask[i] for i in prompt)


def test_subtracts_kl_in_reward_before_comparing_episodes():
    algorithm = GRPO(**PAIR, kl_coefficient=0.1, kl_in="reward", kl_estimator="k1")
    found = batch(GOOD, BAD, algorithm=algorithm, reference=half)
    # 3 and 4 sampled tokens: 4 - 0.3 log 2 against 0 - 0.4 log 2.
    difference = 4.0 + 0.1 * np.log(2)
    np.testing.assert_allclose([s.advantage for s in found.sequences], [difference / 2, -difference / 2])
    assert found.metrics["kl"] == pytest.approx(np.log(2))
    assert found.sequences[0].reference_logprobs is None
    assert algorithm.silent_without_advantage


def test_gives_every_trained_token_its_reference_for_kl_loss():
    algorithm = GRPO(**PAIR, kl_coefficient=0.1, mask_truncated=True)
    cut = episode((1.0, 2, "length"), (1.0, 3, "stop"))
    found = batch(cut, BAD, algorithm=algorithm, reference=half)
    np.testing.assert_allclose(found.sequences[0].reference_logprobs, half([cut.segments[0]])[0][2:])
    assert [s.advantage for s in found.sequences] == [1.0, -1.0]
    assert not algorithm.silent_without_advantage


def test_neither_compares_nor_queries_failed_episodes():
    failed = episode((9.0, 2, "stop"), stop=StopReason.ENVIRONMENT_ERROR)
    asked = []

    def reference(sequences):
        asked.append(len(sequences))
        return half(sequences)

    algorithm = GRPO(group_size=3, groups_per_step=1, kl_coefficient=0.1)
    found = batch(GOOD, BAD, failed, algorithm=algorithm, reference=reference)
    assert len(found.sequences) == 2
    assert asked == [2]


@pytest.mark.parametrize("credit", ["episode", "turn"])
def test_keeps_failure_without_sampled_token_out_of_baseline(credit):
    broken = {"terminated": False, "stop_reason": StopReason.ENVIRONMENT_ERROR, "error": "it broke"}
    prompt = Segment(token_ids=[1, 2], loss_mask=[False] * 2, sampling_logprobs=[None] * 2)
    silent = GOOD.model_copy(update={**broken, "segments": [prompt], "turns": []})
    algorithm = GRPO(group_size=3, groups_per_step=1, credit=credit)
    # One that had answered counts, with what it had earned.
    for other in (BAD, BAD.model_copy(update=broken)):
        found = batch(GOOD, other, silent, algorithm=algorithm, on_failure="keep")
        first = [s.advantage if credit == "episode" else s.advantage[2] for s in found.sequences]
        assert first == [2.0, -2.0]


def in_segments(*turns):
    """An episode whose context was written anew before each turn: a segment of its own for each."""
    whole = episode(*turns)
    segments, records = [], []
    for number, turn in enumerate(whole.turns):
        part = slice(turn.start - 2, turn.end)
        fields = {name: getattr(whole.segments[0], name)[part] for name in Segment.model_fields}
        segments.append(Segment(**fields))
        records.append(
            turn.model_copy(update={"segment": number, "start": 2, "end": 2 + turn.end - turn.start})
        )
    return whole.model_copy(update={"segments": segments, "turns": records})


def test_weighs_episodes_of_a_program_alike_however_they_branch():
    chatty = in_segments((0.0, 4, "stop"), (0.0, 2, "stop"), (4.0, 2, "stop"))
    brief = episode((0.0, 3, "stop"))
    spec = job(GRPO(**PAIR, aggregation="sequence"))
    spec = spec.model_copy(update={"environment": EnvironmentRef(id="local/program/play-v0")})
    played = [
        (request, result_of(request, one))
        for request, one in zip(step_requests("job-1", spec, 1), (chatty, brief), strict=True)
    ]
    found = train_batch(spec, 1, played, reference=never, values=never).sequences
    counts = np.array([sum(one.loss_mask) for one in found])
    totals = BatchTotals(tokens=int(counts.sum()), sequences=len(found))
    weights = token_weights(
        counts, "sequence", totals=totals, constant_tokens=1, weights=[one.weight for one in found]
    )
    # Half of the batch each, and within an episode each token counts alike: also for KL and entropy.
    assert weights == pytest.approx([1.0 / 2 / 8] * 8 + [1.0 / 2 / 3] * 3)
    signed = np.concatenate(
        [np.broadcast_to(one.advantage, len(one.loss_mask))[np.array(one.loss_mask)] for one in found]
    )
    assert weights * signed == pytest.approx([2.0 / 2 / 8] * 8 + [-2.0 / 2 / 3] * 3)


def test_leaves_a_roles_batch_alone_whatever_another_role_earned():
    roles = {"policies": ("job-1/solver", "job-1/critic"), "policy": "job-1/solver"}
    one, other = (
        two_seat_batch((GOOD, GOOD), (BAD, BAD), **roles),
        two_seat_batch((GOOD, BAD), (BAD, GOOD), **roles),
    )
    assert one.sequences == other.sequences


@pytest.mark.parametrize("credit", ["episode", "turn"])
def test_learns_from_every_segment_of_episode_with_its_own_turns(credit):
    good = in_segments((1.0, 2, "stop"), (3.0, 1, "stop"), (0.0, 3, "stop"))
    bad = in_segments((0.0, 2, "stop"), (0.0, 2, "stop"), (0.0, 1, "stop"))
    found = batch(good, bad, algorithm=GRPO(**PAIR, credit=credit))
    told = [
        (list(s.token_ids), s.advantage if credit == "episode" else s.advantage[2]) for s in found.sequences
    ]
    rewards = [2.0, 1.5, 0.0] if credit == "turn" else [2.0] * 3
    assert told == [
        (list(segment.token_ids), sign * reward)
        for sign, trajectory in ((1, good), (-1, bad))
        for segment, reward in zip(trajectory.segments, rewards, strict=True)
    ]
    assert found.groups == [0] * 6
    assert [len(versions) for versions in found.versions] == [2, 1, 3, 2, 2, 1]


@pytest.mark.parametrize("credit", ["episode", "turn"])
def test_permutes_what_was_earned_in_the_control_experiment(credit):
    episodes = [episode((float(reward), 1, "stop")) for reward in range(6)]
    algorithm = GRPO(group_size=6, groups_per_step=1, credit=credit)

    def advantages(**settings):
        sequences = batch(*episodes, algorithm=algorithm, **settings).sequences
        return [s.advantage if credit == "episode" else s.advantage[2] for s in sequences]

    shuffled = advantages(shuffle_rewards=True)
    assert shuffled != advantages()
    assert sorted(shuffled) == advantages()
    assert shuffled == advantages(shuffle_rewards=True)


def expecting(value):
    """A value head that expects the same before every token, and counts how often it is asked."""

    def values(sequences):
        values.asked += 1
        return [np.full(sum(sequence.loss_mask), value, np.float32) for sequence in sequences]

    values.asked = 0
    return values


PLAIN = {"groups_per_step": 2, "whiten_advantages": False}


def test_compares_each_token_with_expectation_before_it_in_ppo():
    values = expecting(0.5)
    found = batch(GOOD, BAD, algorithm=PPO(**PLAIN), values=values)
    good, bad = found.sequences
    assert good.advantage == [0, 0, 3.5, 3.5, 0, 0, 2.5]  # of both turns, then of the second only
    assert bad.advantage == [0, 0, -0.5, -0.5, 0, 0, -0.5, -0.5]
    assert good.value_targets.tolist() == [4.0, 4.0, 3.0]
    assert good.old_values.tolist() == [0.5] * 3
    assert values.asked == 1
    assert found.metrics == {"value_mean": 0.5, "explained_variance": 0.0}


def test_needs_only_one_episode_for_ppo():
    found = batch(GOOD, algorithm=PPO(groups_per_step=1), values=expecting(0.0))
    (sequence,) = found.sequences
    assert np.mean(
        [a for a, m in zip(sequence.advantage, sequence.loss_mask, strict=True) if m]
    ) == pytest.approx(0)


def test_keeps_truncated_completion_as_a_ppo_step():
    cut = episode((1.0, 2, "stop"), (2.0, 3, "length"))
    found = batch(cut, BAD, algorithm=PPO(**PLAIN, mask_truncated=True), values=expecting(1.0))
    sequence = found.sequences[0]
    assert sequence.loss_mask == [False, False, True, True] + [False] * 5
    assert sequence.advantage[2:4] == [2.0, 2.0]
    assert sequence.value_targets.tolist() == [3.0, 3.0]
    # Whitened are the advantages 2, 2, -1, -1, -1, -1 of what is in the loss, and not those of the cut off.
    whitening = PPO(groups_per_step=2, mask_truncated=True)
    found = batch(cut, BAD, algorithm=whitening, values=expecting(1.0)).sequences
    learned = [a for s in found for a, m in zip(s.advantage, s.loss_mask, strict=True) if m]
    assert learned == pytest.approx(np.array([2, 2, -1, -1, -1, -1]) / np.sqrt(2.4), rel=1e-5)


def test_pays_kl_in_reward_token_by_token_under_ppo():
    def reference(sequences):
        return [np.full(sum(s.loss_mask), -2.0, np.float32) for s in sequences]

    algorithm = PPO(**PLAIN, kl_coefficient=0.5, kl_in="reward", kl_estimator="k1")
    two = episode((1.0, 2, "stop"))  # sampled at -1 and -1.1, so a KL of 1 and 0.9
    found = batch(two, BAD, algorithm=algorithm, reference=reference, values=expecting(0.0))
    assert found.sequences[0].advantage[2:] == pytest.approx([1 - 0.5 - 0.45, 1 - 0.45])


def test_learns_nothing_from_failed_episodes_in_ppo():
    failed = episode((1.0, 2, "stop"), stop=StopReason.ENVIRONMENT_ERROR)
    found = batch(failed, BAD, algorithm=PPO(**PLAIN), values=expecting(0.0))
    assert len(found.sequences) == 1


def test_shuffles_rewards_in_ppo_too():
    plain = batch(GOOD, BAD, algorithm=PPO(**PLAIN), values=expecting(0.0))
    found = [
        batch(GOOD, BAD, algorithm=PPO(**PLAIN), values=expecting(0.0), shuffle_rewards=True, seed=seed)
        for seed in range(8)
    ]
    firsts = [[s.value_targets[0] for s in one.sequences] for one in found]
    assert all(sum(first) == 4.0 for first in firsts)
    assert any(first != [s.value_targets[0] for s in plain.sequences] for first in firsts)
