"""From a step's episodes to the learner's input: rewards, advantages, and sequences with them.

Pure except for two questions to the model: the reference policy's logprobs of the sampled tokens, only if a
job has a KL penalty, and the value head's estimates, only if there is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from backend.episodes.played import Played, PlayedSeat, trained_seats
from backend.episodes.seat_players import class_of
from backend.episodes.staleness import IntArray, versions_of
from backend.jobs.dynamic_sampling import learned_from
from backend.jobs.kl_metric import kl_at_tokens
from backend.jobs.run_evidence import Source
from backend.jobs.turn_rewards import compared_return, counts, shaped_rewards
from backend.learner.sequences import FloatArray, TrainSequence
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.trajectory.outcomes import Credit, Outcome, StepOutcomes
from tinkergym.trajectory.trajectory import Segment, Trajectory

_SHUFFLE = 2
"""Last word of the entropy for the control experiment's permutation."""

PerToken = Callable[[Sequence[TrainSequence]], list[FloatArray]]
"""Returns one number per sampled token, per sequence."""


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
    memory: Mapping[str, Any] | None = None,
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
        memory: What the algorithm remembered of earlier steps.

    Raises:
        InvalidRequestError: The algorithm credits more or fewer seats than there are.
    """
    algorithm = spec.algorithm
    kept, replaced = learned_from(spec, played)
    seats = _by_group(trained_seats(kept, policy))
    outcomes = outcomes_of(spec, seats)
    metrics = _penalty_metrics(spec, outcomes, replaced)
    found: Sequence[Mapping[int, FloatArray]] = [{} for _ in outcomes]
    if algorithm.kl_coefficient:
        found = _asked(spec, outcomes, reference)
        if algorithm.kl_in == "reward":
            outcomes, metrics["kl"] = _with_penalty(spec, outcomes, found)
    shuffle = np.random.default_rng([spec.seed, step, _SHUFFLE]) if spec.shuffle_rewards else None
    if shuffle is not None and not algorithm.permutes_returns:
        outcomes = _shuffled(outcomes, shuffle)
    credited = algorithm.credits(
        StepOutcomes(outcomes, lambda: _asked(spec, outcomes, values), shuffle, memory or {})
    )
    if len(credited.of) != len(outcomes):
        raise InvalidRequestError(
            f"the algorithm {algorithm.own_name()!r} credits {len(credited.of)} of {len(outcomes)} seats",
            hint="`credits` returns one for each of `step.seats`; None leaves an episode out",
            field="algorithm.name",
        )
    sequences, sources, versions = _assembled(spec, seats, outcomes, credited.of, found)
    if spec.environment.is_program and algorithm.aggregation == "sequence":
        sequences = _by_episode(sequences, sources)
    return TrainBatch(
        sequences=sequences,
        groups=[source.seat.group for source in sources],
        metrics={**metrics, **credited.metrics},
        versions=versions,
        sources=sources,
    )


def outcomes_of(spec: RLSpec, seats: Sequence[PlayedSeat]) -> list[Outcome]:
    """Return what each seat did and earned, before any KL penalty."""
    # The seats of a job share a few environments, whose settings may be long.
    environments = {id(seat.request.environment): seat.request.environment for seat in seats}
    written = {key: environment.model_dump_json() for key, environment in environments.items()}
    return [
        _with_rewards(
            Outcome(
                trajectory=seat.trajectory,
                rewards=[],
                earned=0.0,
                counts=counts(spec, seat.trajectory),
                group=seat.group,
                kind=kind,
                key=f"{written[id(seat.request.environment)]}|{_place_of(seat)}",
                trained=[_learned(spec, seat.trajectory, k) for k in range(len(seat.trajectory.segments))],
            ),
            shaped_rewards(spec, seat.trajectory),
        )
        for seat, kind in zip(seats, _kinds(spec, seats), strict=True)
    ]


def _place_of(seat: PlayedSeat) -> str:
    """Return the agent of a seat and the kinds of its opponents."""
    agent = seat.trajectory.agent
    opponents = sorted(class_of(one.player) for other, one in seat.request.seats.items() if other != agent)
    return f"{agent}|{'+'.join(opponents)}"


def _with_rewards(outcome: Outcome, rewards: list[float]) -> Outcome:
    return replace(outcome, rewards=rewards, earned=compared_return(outcome.trajectory, rewards))


def _assembled(
    spec: RLSpec,
    seats: Sequence[PlayedSeat],
    outcomes: Sequence[Outcome],
    credited: Sequence[Credit | None],
    found: Sequence[Mapping[int, FloatArray]],
) -> tuple[list[TrainSequence], list[Source], list[IntArray]]:
    """Return the segments with tokens to train on, their sources, and the versions that sampled them."""
    sequences, sources, versions = [], [], []
    for seat, outcome, credit, reference in zip(seats, outcomes, credited, found, strict=True):
        if credit is None:
            continue
        for k, mask in enumerate(outcome.trained):
            if mask.any():
                sequences.append(_sequence(spec, outcome, k, credit, reference=reference.get(k)))
                sources.append(Source(seat, k))
                versions.append(versions_of(seat.trajectory, k, mask))
    return sequences, sources, versions


def _by_episode(sequences: list[TrainSequence], sources: Sequence[Source]) -> list[TrainSequence]:
    """Weigh sequences so that their mean is one over episodes of the mean over an episode's tokens.

    Otherwise an episode whose program branches often would weigh more than others.
    """
    tokens = [sum(sequence.loss_mask) for sequence in sequences]
    episodes = [source.seat.request.episode_id for source in sources]
    whole: Counter[str] = Counter()
    for episode, own in zip(episodes, tokens, strict=True):
        whole[episode] += own
    per_episode = len(sequences) / max(len(whole), 1)
    return [
        replace(sequence, weight=per_episode * own / whole[episode])
        for sequence, episode, own in zip(sequences, episodes, tokens, strict=True)
    ]


def _by_group(seats: list[PlayedSeat]) -> list[PlayedSeat]:
    """Return the seats with those of a group next to each other, otherwise in order."""
    places = {group: place for place, group in enumerate(dict.fromkeys(seat.group for seat in seats))}
    return sorted(seats, key=lambda seat: places[seat.group])


def _kinds(spec: RLSpec, seats: Sequence[PlayedSeat]) -> list[int]:
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


def _shuffled(outcomes: list[Outcome], shuffle: np.random.Generator) -> list[Outcome]:
    """Permute the rewards of all trained turns, those of each environment and seat separately."""
    rewards = [list(outcome.rewards) for outcome in outcomes]
    # Sorted, because the order of a set differs between processes, and with it the random draws.
    for kind in sorted({outcome.kind for outcome in outcomes}):
        turns = [
            (n, k)
            for n, outcome in enumerate(outcomes)
            if outcome.counts and outcome.kind == kind
            for k in range(len(outcome.rewards))
        ]
        permuted = shuffle.permutation([rewards[n][k] for n, k in turns])
        for (n, k), reward in zip(turns, permuted.tolist(), strict=True):
            rewards[n][k] = reward
    return [_with_rewards(outcome, own) for outcome, own in zip(outcomes, rewards, strict=True)]


def _learned(spec: RLSpec, trajectory: Trajectory, number: int) -> npt.NDArray[np.bool_]:
    """Return which tokens of a segment enter the loss."""
    mask = np.asarray(trajectory.segments[number].loss_mask, dtype=bool)
    for turn in trajectory.turns:
        cut = spec.algorithm.mask_truncated and turn.finish_reason == "length"
        if turn.segment == number and (turn.void or cut):
            mask[turn.start : turn.end] = False
    return mask


def _sequence(
    spec: RLSpec, outcome: Outcome, k: int, credit: Credit, *, reference: FloatArray | None
) -> TrainSequence:
    """Return a segment as a sequence in which the tokens of `outcome.trained` are trained on."""
    segment, mask = outcome.trajectory.segments[k], outcome.trained[k]
    sequence = TrainSequence.from_segment(
        segment, advantage=_per_token(outcome.trajectory, k, credit), temperature=spec.sampling.temperature
    )
    if spec.algorithm.mask_truncated or any(turn.void for turn in outcome.trajectory.turns):
        logprobs = [p if m else None for p, m in zip(segment.sampling_logprobs, mask, strict=True)]
        sequence = replace(sequence, loss_mask=mask.tolist(), sampling_logprobs=logprobs)
    # Credits and logprobs are given per sampled token; this selects those that are trained on.
    kept = mask[np.asarray(segment.loss_mask)]  # [sampled tokens of the segment]
    if isinstance(credit, Mapping):
        sequence = replace(
            sequence,
            value_targets=credit[k].value_targets[kept].astype(np.float32),
            old_values=credit[k].old_values[kept].astype(np.float32),
        )
    if reference is not None and spec.algorithm.kl_in == "loss":
        sequence = replace(sequence, reference_logprobs=reference[kept])
    return sequence


def _per_token(trajectory: Trajectory, k: int, credit: Credit) -> float | list[float]:
    """Return one advantage for a segment, or one for each of its tokens."""
    segment = trajectory.segments[k]
    if isinstance(credit, Mapping):
        return [float(value) for value in _at_tokens(segment, credit[k].advantages)]
    if not isinstance(credit, np.ndarray):
        return float(credit)
    per_token = [0.0] * len(segment.token_ids)
    for number, turn in enumerate(trajectory.turns):
        if turn.segment == k:
            per_token[turn.start : turn.end] = [float(credit[number])] * (turn.end - turn.start)
    return per_token


def _asked(spec: RLSpec, outcomes: Sequence[Outcome], ask: PerToken) -> list[dict[int, FloatArray]]:
    """Query every segment that may be trained on; returns the numbers of each seat's, by segment."""
    places = [
        (n, k)
        for n, outcome in enumerate(outcomes)
        if outcome.counts
        for k, segment in enumerate(outcome.trajectory.segments)
        if any(segment.loss_mask)
    ]
    found: list[dict[int, FloatArray]] = [{} for _ in outcomes]
    if not places:
        return found
    sequences = [
        TrainSequence.from_segment(
            outcomes[n].trajectory.segments[k], advantage=0.0, temperature=spec.sampling.temperature
        )
        for n, k in places
    ]
    for (n, k), numbers in zip(places, ask(sequences), strict=True):
        found[n][k] = numbers
    return found


def _with_penalty(
    spec: RLSpec, outcomes: Sequence[Outcome], reference: Sequence[Mapping[int, FloatArray]]
) -> tuple[list[Outcome], float]:
    """Charge each completion, or token, for its KL to the reference; also returns the mean per token."""
    algorithm, charged, total, tokens = spec.algorithm, [], 0.0, 0
    for outcome, own in zip(outcomes, reference, strict=True):
        rewards, costs = list(outcome.rewards), {}
        for k, logprobs in own.items():
            segment = outcome.trajectory.segments[k]
            sampled = [p for p in segment.sampling_logprobs if p is not None]
            kl = kl_at_tokens(sampled, logprobs, algorithm.kl_estimator)
            total, tokens = total + float(kl.sum()), tokens + len(logprobs)
            if algorithm.credited == "token":
                costs[k] = algorithm.kl_coefficient * kl
                continue
            spread = _at_tokens(segment, kl)
            for number, turn in enumerate(outcome.trajectory.turns):
                if turn.segment == k:
                    rewards[number] -= algorithm.kl_coefficient * float(spread[turn.start : turn.end].sum())
        charged.append(replace(_with_rewards(outcome, rewards), token_costs=costs))
    return charged, total / max(tokens, 1)


def _at_tokens(segment: Segment, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Spread one value per sampled token over all tokens, 0 elsewhere."""
    spread = np.zeros(len(segment.token_ids))
    spread[np.asarray(segment.loss_mask, dtype=bool)] = values
    return spread


def _penalty_metrics(spec: RLSpec, outcomes: Sequence[Outcome], replaced: int) -> dict[str, float]:
    algorithm = spec.algorithm
    metrics: dict[str, float] = {}
    turns = [turn for outcome in outcomes for turn in outcome.trajectory.turns]
    if algorithm.replacement_rounds:
        metrics["replaced_groups"] = float(replaced)
    if algorithm.overlong_tokens:
        given = sum(turn.reward for turn in turns)
        kept = sum(sum(outcome.rewards) for outcome in outcomes)
        metrics["overlong_penalty_mean"] = (given - kept) / max(len(turns), 1)
    if algorithm.mask_truncated:
        cut = sum(turn.finish_reason == "length" for turn in turns)
        metrics["truncated_fraction"] = cut / max(len(turns), 1)
    return metrics
