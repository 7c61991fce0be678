"""Facts of a job's loop for its certificate: which tokens were trained on, and every episode's outcome.

The digests of the learner's tokens are computed from the learner's input, and compared with those of the
engine's completions, recorded when they left the engine.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from backend.episodes.logprob_gaps import LogprobGaps
from backend.episodes.played import Played, PlayedSeat
from backend.learner.sequences import FloatArray, TrainSequence
from backend.store.episode_results import StoredEpisode
from backend.store.stored_facts import Fact
from tinkergym.schema.certificate import EpisodeFate, StepFacts, StepLedger
from tinkergym.schema.episodes import EpisodeRequest, EpisodeResult
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.trajectory.ledger import DIGEST_BYTES, NO_DIGEST, completion_digest
from tinkergym.trajectory.trajectory import COMPLETED_REASONS, StopReason, Trajectory, Turn


class Source(NamedTuple):
    """The source of a trained sequence."""

    seat: PlayedSeat
    segment: int


class RunEvidence:
    """Collects what one attempt of a job trains on, until the step is recorded."""

    def __init__(self) -> None:
        self._trained: dict[tuple[str, str], dict[int, tuple[bytes, int]]] = defaultdict(dict)
        """By episode and agent, for each turn: the digest of its tokens in the learner's batch, and their
        number."""
        self._unplaced: Counter[str] = Counter()
        """By episode, trained tokens outside all turns."""
        self.gaps = LogprobGaps()

    def trained(self, sources: Sequence[Source], sequences: Sequence[TrainSequence]) -> None:
        """Record the learner's input, sequence by sequence."""
        for (seat, number), sequence in zip(sources, sequences, strict=True):
            episode = seat.request.episode_id
            own = self._trained[episode, seat.trajectory.agent]
            left = sum(sequence.loss_mask)
            for index, turn in enumerate(seat.trajectory.turns):
                # A turn that is trained on in part has no digest to compare: its tokens count as unplaced.
                if turn.segment == number and all(sequence.loss_mask[turn.start : turn.end]):
                    tokens = sequence.token_ids[turn.start : turn.end]
                    own[index] = completion_digest(turn.policy_version, tokens), len(tokens)
                    left -= len(tokens)
            self._unplaced[episode] += left

    def compared(
        self,
        step: int,
        sources: Sequence[Source],
        sequences: Sequence[TrainSequence],
        learner_logprobs: Sequence[FloatArray],
    ) -> None:
        """Keep the learner's logprobs of the step's first update, for people who look at its episodes."""
        for (seat, number), sequence, own in zip(sources, sequences, learner_logprobs, strict=True):
            place = seat.request.index, seat.trajectory.agent, number
            self.gaps.add(step, place, seat.trajectory.segments[number], sequence.loss_mask, own)

    def step(
        self,
        spec: PlayedSpec,
        step: int,
        attempt: int,
        played: Played,
        *,
        stored: Mapping[str, StoredEpisode],
        issued: Mapping[str, int],
        learned_from: Iterable[str],
        learning_rates: Mapping[str, float],
    ) -> tuple[StepFacts, list[Fact]]:
        """Return a step's facts, in total and for each episode, and clear the collected ones.

        Args:
            spec: The job's settings.
            step: The step.
            attempt: The attempt that records it.
            played: All episodes of the step.
            stored: The store's records of them.
            issued: How often each was issued in this attempt.
            learned_from: Episodes that were not replaced by others.
            learning_rates: The step's learning rate of each policy, by agent, where known.
        """
        stayed = set(learned_from)
        fates = [
            self._fate(
                spec,
                request,
                result,
                stored=stored.get(request.episode_id),
                issued=issued.get(request.episode_id, 1),
                stayed=request.episode_id in stayed,
            )
            for request, result in played
        ]
        self._trained.clear()
        self._unplaced.clear()
        ledger = StepLedger(step=step, attempt=attempt, episodes=fates).model_dump_json().encode()
        counted = _counted(step, attempt, fates).model_copy(
            update={
                "ledger_sha256": hashlib.sha256(ledger).hexdigest(),
                "learning_rate": learning_rates.get(""),
                "learning_rates": {agent: rate for agent, rate in learning_rates.items() if agent},
            }
        )
        return counted, [
            Fact(kind="step", number=step, attempt=0, body=counted),
            Fact(kind="ledger", number=step, attempt=0, body=ledger),
        ]

    def _fate(
        self,
        spec: PlayedSpec,
        request: EpisodeRequest,
        result: EpisodeResult,
        *,
        stored: StoredEpisode | None,
        issued: int,
        stayed: bool,
    ) -> EpisodeFate:
        captured = captured_by_turn(result, b"" if stored is None else stored.captured)
        trained = matched = 0
        for trajectory in result.trajectories:
            for index, (digest, tokens) in self._trained[request.episode_id, trajectory.agent].items():
                trained += tokens
                matched += tokens if captured.get((trajectory.agent, index)) == digest else 0
        # They match nothing: the certificate shows them as tokens that no engine is known to have sampled.
        trained += self._unplaced[request.episode_id]
        trained_seats = [one for one in result.trajectories if request.seats[one.agent].trained]
        return EpisodeFate(
            episode_id=request.episode_id,
            fate="trained" if trained else "dropped",
            why="" if trained else _why(spec, result, trained_seats, stayed=stayed),
            retries=max(one.retries for one in result.trajectories),
            issued=issued,
            sampled_tokens=sum(one.sampled_tokens for one in trained_seats),
            captured_tokens=sum(
                turn.end - turn.start
                for one in trained_seats
                for index, turn in enumerate(one.turns)
                if (one.agent, index) in captured
            ),
            trained_tokens=trained,
            matched_tokens=matched,
            sha256="" if stored is None else stored.sha256,
        )


def captured_by_turn(result: EpisodeResult, digests: bytes) -> dict[tuple[str, int], bytes]:
    """Return the digests of completions that the engine is known to have returned, by agent and turn."""
    found: dict[tuple[str, int], bytes] = {}
    for number, (trajectory, index, _) in enumerate(_turns(result.trajectories)):
        digest = digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]
        if digest and digest != NO_DIGEST:
            found[trajectory.agent, index] = digest
    return found


def _turns(trajectories: Iterable[Trajectory]) -> Iterator[tuple[Trajectory, int, Turn]]:
    for trajectory in trajectories:
        for index, turn in enumerate(trajectory.turns):
            yield trajectory, index, turn


def _why(
    spec: PlayedSpec, result: EpisodeResult, trained_seats: Sequence[Trajectory], *, stayed: bool
) -> str:
    """Return why an episode was not trained on."""
    reasons = [one.stop_reason for one in result.trajectories if one.stop_reason not in COMPLETED_REASONS]
    # In a failed game, the seat that failed is more informative than those affected by it.
    reasons.sort(key=lambda reason: reason is StopReason.SEAT_FAILED)
    if reasons:
        return str(reasons[0].value)
    if not any(one.turns for one in trained_seats):
        return "no_turns"
    if not stayed:
        return "replaced_group"
    if spec.masks_truncated and all(turn.finish_reason == "length" for _, _, turn in _turns(trained_seats)):
        return "masked"
    return "nothing_to_compare"


def _counted(step: int, attempt: int, fates: Sequence[EpisodeFate]) -> StepFacts:
    return StepFacts(
        step=step,
        attempt=attempt,
        episodes=len(fates),
        trained=sum(fate.fate == "trained" for fate in fates),
        dropped=dict(Counter(fate.why for fate in fates if fate.fate == "dropped")),
        retried=sum(fate.retries > 0 for fate in fates),
        issued_again=sum(fate.issued - 1 for fate in fates),
        sampled_tokens=sum(fate.sampled_tokens for fate in fates),
        captured_tokens=sum(fate.captured_tokens for fate in fates),
        trained_tokens=sum(fate.trained_tokens for fate in fates),
        matched_tokens=sum(fate.matched_tokens for fate in fates),
    )
