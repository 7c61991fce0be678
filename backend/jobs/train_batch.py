"""From a step's episodes to the learner's input: rewards, advantages, and sequences with them.

Pure except for two questions to the model: the reference policy's logprobs of the sampled tokens, only if a
job has a KL penalty, and the value head's estimates, only if there is one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np
import numpy.typing as npt
import torch

from backend.episodes.played import Played, PlayedSeat, trained_seats
from backend.episodes.staleness import IntArray, versions_of
from backend.jobs.dynamic_sampling import learned_from
from backend.jobs.run_facts import Source
from backend.jobs.running_baselines import RunningBaselines
from backend.jobs.token_credit import (
    Numbers,
    Place,
    TokenCredit,
    token_credits,
    value_metrics,
    whitened_credits,
)
from backend.jobs.turn_rewards import compared_return, counts, shaped_rewards
from backend.learner.kl import kl_estimates
from backend.learner.sequences import FloatArray, TrainSequence
from backend.learner.shaping import returns_to_go
from tinkergym.evaluation.advantages import Advantages, group_advantages, turn_advantages
from tinkergym.schema.algorithms import PPO, RunningBaseline
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.trajectory.trajectory import Segment, Trajectory, Turn

_SHUFFLE = 2
"""Last word of the entropy for the control experiment's permutation."""

PerToken = Callable[[Sequence[TrainSequence]], list[FloatArray]]
"""Returns one number per sampled token, per sequence."""

Credit = float | npt.NDArray[np.float64] | TokenCredit
"""An advantage for a whole episode, one for each of its turns, or one for each sampled token of a segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """The training input of a step."""

    sequences: list[TrainSequence]
    groups: list[int]
    """The group of each sequence; those of a group are adjacent."""
    metrics: dict[str, float]
    versions: list[IntArray]
    """For each sequence, the version that sampled each trained token."""
    sources: list[Source]
    """For each sequence."""


def train_batch(
    spec: RLSpec,
    step: int,
    played: Played,
    reference: PerToken,
    values: PerToken,
    *,
    policy: str | None = None,
    baselines: RunningBaselines | None = None,
) -> TrainBatch:
    """Turn a step's episodes into a train batch.

    Args:
        spec: The job's settings.
        step: Its number, which seeds the control experiment's shuffle.
        played: All episodes of the step.
        reference: Returns the reference policy's logprobs; called once, and only if the job has a KL penalty.
        values: Returns the value head's estimates; called once, and only if there is one.
        policy: Whose seats are trained on; None means all trained ones. A seat is compared with the
            same seat of its group's other episodes, never with another seat.
        baselines: Running baselines, for an algorithm that uses them.
    """
    kept, replaced = learned_from(spec, played)
    seats = _by_group(trained_seats(kept, policy))
    trajectories = [seat.trajectory for seat in seats]
    groups = [seat.group for seat in seats]
    counted = [counts(spec, trajectory) for trajectory in trajectories]
    rewards = [shaped_rewards(spec, trajectory) for trajectory in trajectories]
    metrics = _penalty_metrics(spec, trajectories, rewards, replaced)

    found: dict[Place, FloatArray] = {}
    divergence: dict[Place, Numbers] = {}
    if spec.algorithm.kl_coefficient:
        found = _asked(spec, trajectories, counted, reference)
        if spec.algorithm.kl_in == "reward":
            divergence, metrics["kl"] = _divergence(spec, trajectories, found)
    if isinstance(spec.algorithm, PPO):
        if spec.shuffle_rewards:
            _shuffle(spec, step, rewards, counted, _strata(spec, seats))
        credited, judged = _token_credits(
            spec,
            spec.algorithm,
            trajectories,
            token_credits(
                spec.algorithm,
                trajectories,
                rewards,
                _asked(spec, trajectories, counted, values),
                {place: spec.algorithm.kl_coefficient * kl for place, kl in divergence.items()},
            ),
        )
    elif isinstance(spec.algorithm, RunningBaseline):
        _take_off(spec, divergence, trajectories, rewards)
        known = baselines or RunningBaselines()
        expected = [known.value(seat, spec.algorithm.decay) for seat in seats]
        if spec.shuffle_rewards:
            _shuffle(spec, step, rewards, counted, _strata(spec, seats))
        credited, judged = _against_before(trajectories, rewards, expected, counted)
    else:
        _take_off(spec, divergence, trajectories, rewards)
        credited, judged = _compared(
            spec,
            step,
            trajectories,
            rewards=rewards,
            groups=groups,
            counted=counted,
            strata=_strata(spec, seats),
        )
    return _assembled(spec, seats, credited, found, metrics | judged)


def _assembled(
    spec: RLSpec,
    seats: Sequence[PlayedSeat],
    credited: Mapping[Place, Credit],
    found: Mapping[Place, FloatArray],
    metrics: dict[str, float],
) -> TrainBatch:
    """Return the batch of the segments with tokens to train on."""
    sequences, versions, group_of, sources = [], [], [], []
    for (episode, number), credit in credited.items():
        trajectory = seats[episode].trajectory
        mask = _learned(spec, trajectory, number)
        if mask.any():
            reference = found.get((episode, number))
            sequences.append(_sequence(spec, trajectory, number, credit, mask=mask, reference=reference))
            versions.append(versions_of(trajectory, number, mask))
            group_of.append(seats[episode].group)
            sources.append(Source(seats[episode], number))
    return TrainBatch(
        sequences=sequences, groups=group_of, metrics=metrics, versions=versions, sources=sources
    )


def _against_before(
    trajectories: list[Trajectory],
    rewards: list[list[float]],
    expected: list[float],
    counted: list[bool],
) -> tuple[dict[Place, Credit], dict[str, float]]:
    """Compare each episode with earlier ones at its seat; returns the credits of segments."""
    places: dict[Place, Credit] = {
        (episode, number): sum(rewards[episode]) - expected[episode]
        for episode, trajectory in enumerate(trajectories)
        if counted[episode]
        for number in range(len(trajectory.segments))
    }
    used = list(compress(expected, counted))
    return places, ({"baseline_mean": float(np.mean(used))} if used else {})


def earned_by_seat(spec: RLSpec, played: Played, policy: str) -> list[tuple[PlayedSeat, float]]:
    """Return the shaped returns of a policy's seats in the valid episodes, before any KL penalty."""
    return [
        (seat, compared_return(seat.trajectory, shaped_rewards(spec, seat.trajectory)))
        for seat in trained_seats(played, policy)
        if counts(spec, seat.trajectory)
    ]


def _by_group(seats: list[PlayedSeat]) -> list[PlayedSeat]:
    """Return the seats with those of a group next to each other, otherwise in order."""
    groups: dict[int, list[PlayedSeat]] = defaultdict(list)
    for seat in seats:
        groups[seat.group].append(seat)
    return [seat for some in groups.values() for seat in some]


def _strata(spec: RLSpec, seats: list[PlayedSeat]) -> list[int]:
    """Number the environment and the agent of each seat: rewards are only compared within one such pair.

    A policy may play several seats of a game, and moving first may be worth more than moving second.
    """
    known = list(spec.own_environments.values())
    pairs = [
        (known.index(seat.request.environment) if len(known) > 1 else 0, seat.trajectory.agent)
        for seat in seats
    ]
    numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    return [numbers[pair] for pair in pairs]


def _compared(
    spec: RLSpec,
    step: int,
    trajectories: list[Trajectory],
    *,
    rewards: list[list[float]],
    groups: list[int],
    counted: list[bool],
    strata: list[int],
) -> tuple[dict[Place, Credit], dict[str, float]]:
    """Compare the episodes; returns the credits of the segments of trained ones."""
    returns = [compared_return(*pair) for pair in zip(trajectories, rewards, strict=True)]
    credited, advantages = _credits(spec, step, rewards, groups, counted, returns=returns, strata=strata)
    metrics = {
        "zero_variance_groups": float(advantages.zero_variance_groups),
        "broken_groups": float(advantages.broken_groups),
        "compared_groups": float(len(set(compress(groups, advantages.included)))),
    }
    if spec.algorithm.credit == "turn":
        metrics["lone_turns"] = float(advantages.lone_turns)
    places: dict[Place, Credit] = {
        (episode, number): credited[episode]
        for episode, trajectory in enumerate(trajectories)
        if advantages.included[episode]
        for number in range(len(trajectory.segments))
    }
    return places, metrics


def _credits(
    spec: RLSpec,
    step: int,
    rewards: list[list[float]],
    groups: list[int],
    counted: list[bool],
    *,
    returns: list[float],
    strata: list[int],
) -> tuple[list[float] | list[npt.NDArray[np.float64]], Advantages]:
    """Return each episode's advantage, or those of its turns."""
    algorithm = spec.algorithm
    assert not isinstance(algorithm, PPO | RunningBaseline), "its episodes are not compared with one another"
    baseline, normalize = algorithm.comparison
    shuffle = np.random.default_rng([spec.seed, step, _SHUFFLE]) if spec.shuffle_rewards else None
    if algorithm.credit == "turn":
        earned = [returns_to_go(some, discount=algorithm.discount) for some in rewards]
        return turn_advantages(
            earned,
            groups,
            counted,
            baseline=baseline,
            normalize=normalize,
            shuffle=shuffle,
            strata=strata,
        )
    advantages = group_advantages(
        returns,
        groups,
        counted,
        baseline=baseline,
        normalize=normalize,
        shuffle=shuffle,
        strata=strata,
    )
    return [float(value) for value in advantages.values], advantages


def _token_credits(
    spec: RLSpec, algorithm: PPO, trajectories: list[Trajectory], credited: dict[Place, TokenCredit]
) -> tuple[dict[Place, Credit], dict[str, float]]:
    """Whiten the credits if configured, and return how good the values were."""
    metrics = value_metrics(credited)
    if algorithm.whiten_advantages:
        learned = {
            (episode, number): _learned(spec, trajectories[episode], number)[
                np.asarray(trajectories[episode].segments[number].loss_mask, dtype=bool)
            ]
            for episode, number in credited
        }
        # A mean over several seats would credit each with how well the other ones pay.
        by_agent: dict[str, dict[Place, TokenCredit]] = defaultdict(dict)
        for place, credit in credited.items():
            by_agent[trajectories[place[0]].agent][place] = credit
        white = {
            place: credit
            for own in by_agent.values()
            for place, credit in whitened_credits(own, learned).items()
        }
        credited = {place: white[place] for place in credited}
    return dict(credited), metrics


def _shuffle(
    spec: RLSpec, step: int, rewards: list[list[float]], counted: list[bool], strata: list[int]
) -> None:
    """Permute the rewards of all trained turns in place, those of each environment and seat separately."""
    shuffle = np.random.default_rng([spec.seed, step, _SHUFFLE])
    for kind in sorted(set(strata)):
        turns = [
            (episode, k)
            for episode, some in enumerate(rewards)
            if counted[episode] and strata[episode] == kind
            for k in range(len(some))
        ]
        permuted = shuffle.permutation([rewards[episode][k] for episode, k in turns])
        for (episode, k), reward in zip(turns, permuted.tolist(), strict=True):
            rewards[episode][k] = reward


def _learned(spec: RLSpec, trajectory: Trajectory, number: int) -> npt.NDArray[np.bool_]:
    """Return which tokens of a segment enter the loss."""
    mask = np.asarray(trajectory.segments[number].loss_mask, dtype=bool)
    for turn in trajectory.turns:
        if turn.segment == number and (turn.void or _is_masked(spec, turn)):
            mask[turn.start : turn.end] = False
    return mask


def _is_masked(spec: RLSpec, turn: Turn) -> bool:
    return spec.algorithm.mask_truncated and turn.finish_reason == "length"


def _sequence(
    spec: RLSpec,
    trajectory: Trajectory,
    number: int,
    credit: Credit,
    *,
    mask: npt.NDArray[np.bool_],
    reference: FloatArray | None,
) -> TrainSequence:
    """Return a segment as a sequence in which the tokens of `mask` are trained on."""
    segment = trajectory.segments[number]
    sequence = TrainSequence.from_segment(
        segment,
        advantage=_per_token(trajectory, number, credit),
        temperature=spec.sampling.temperature,
    )
    if spec.algorithm.mask_truncated or any(turn.void for turn in trajectory.turns):
        logprobs = [p if m else None for p, m in zip(segment.sampling_logprobs, mask, strict=True)]
        sequence = replace(sequence, loss_mask=mask.tolist(), sampling_logprobs=logprobs)
    if reference is None and not isinstance(credit, TokenCredit):
        return sequence
    kept = mask[np.asarray(segment.loss_mask)]
    if isinstance(credit, TokenCredit):
        sequence = replace(
            sequence,
            value_targets=credit.value_targets[kept].astype(np.float32),
            old_values=credit.old_values[kept].astype(np.float32),
        )
    if reference is not None and spec.algorithm.kl_in == "loss":
        sequence = replace(sequence, reference_logprobs=reference[kept])
    return sequence


def _per_token(trajectory: Trajectory, number: int, credit: Credit) -> float | list[float]:
    """Return one advantage for a segment, or one for each of its tokens."""
    segment = trajectory.segments[number]
    if isinstance(credit, float):
        return credit
    if isinstance(credit, TokenCredit):
        return [float(value) for value in _at_tokens(segment, credit.advantages)]
    per_token = [0.0] * len(segment.token_ids)
    for k, turn in enumerate(trajectory.turns):
        if turn.segment == number:
            per_token[turn.start : turn.end] = [float(credit[k])] * (turn.end - turn.start)
    return per_token


def _asked(
    spec: RLSpec, trajectories: list[Trajectory], counted: list[bool], ask: PerToken
) -> dict[Place, FloatArray]:
    """Query every segment that may be trained on."""
    asked = [
        (episode, number)
        for episode, trajectory in enumerate(trajectories)
        if counted[episode]
        for number, segment in enumerate(trajectory.segments)
        if any(segment.loss_mask)
    ]
    if not asked:
        return {}
    sequences = [
        TrainSequence.from_segment(
            trajectories[episode].segments[number], advantage=0.0, temperature=spec.sampling.temperature
        )
        for episode, number in asked
    ]
    return dict(zip(asked, ask(sequences), strict=True))


def _divergence(
    spec: RLSpec, trajectories: list[Trajectory], reference: dict[Place, FloatArray]
) -> tuple[dict[Place, Numbers], float]:
    """Return each sampled token's KL to the reference, by segment, and the mean over tokens, in nats."""
    found: dict[Place, Numbers] = {}
    total, tokens = 0.0, 0
    for (episode, number), logprobs in reference.items():
        sampling = trajectories[episode].segments[number].sampling_logprobs
        found[episode, number] = kl_estimates(
            torch.tensor([p for p in sampling if p is not None], dtype=torch.float64),
            torch.from_numpy(logprobs.astype(np.float64)),
            spec.algorithm.kl_estimator,
        ).numpy()
        total, tokens = total + float(found[episode, number].sum()), tokens + len(logprobs)
    return found, total / max(tokens, 1)


def _take_off(
    spec: RLSpec,
    divergence: dict[Place, Numbers],
    trajectories: list[Trajectory],
    rewards: list[list[float]],
) -> None:
    """Subtract the KL of its completion from each turn's reward, in place."""
    for (episode, number), kl in divergence.items():
        spread = _at_tokens(trajectories[episode].segments[number], kl)
        for k, turn in enumerate(trajectories[episode].turns):
            if turn.segment == number:
                cost = float(spread[turn.start : turn.end].sum())
                rewards[episode][k] -= spec.algorithm.kl_coefficient * cost


def _at_tokens(segment: Segment, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Spread one value per sampled token over all tokens, 0 elsewhere."""
    spread = np.zeros(len(segment.token_ids))
    spread[np.asarray(segment.loss_mask, dtype=bool)] = values
    return spread


def _penalty_metrics(
    spec: RLSpec, trajectories: list[Trajectory], rewards: list[list[float]], replaced: int
) -> dict[str, float]:
    algorithm = spec.algorithm
    metrics: dict[str, float] = {}
    answers = max(sum(len(trajectory.turns) for trajectory in trajectories), 1)
    if algorithm.dynamic_sampling_rounds:
        metrics["replaced_groups"] = float(replaced)
    if algorithm.overlong_tokens:
        given = sum(turn.reward for trajectory in trajectories for turn in trajectory.turns)
        metrics["overlong_penalty_mean"] = (given - sum(map(sum, rewards))) / answers
    if algorithm.mask_truncated:
        cut = sum(turn.finish_reason == "length" for t in trajectories for turn in t.turns)
        metrics["truncated_fraction"] = cut / answers
    return metrics
