"""Invariants of every trajectory's tokens, whatever the environment, the template and the policy do."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from tinkergym.agent.sampler import Deliver, Sampler
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest
from tinkergym.trajectory.trajectory import Trajectory


@dataclass(slots=True)
class Session:
    """The requests and completions of a sampler in one episode, in order."""

    requests: list[SampleRequest] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)


class RecordingSampler:
    """Passes requests to another sampler and records them with their completions.

    Example:
        >>> sampler = RecordingSampler(RandomTokenSampler(renderer.vocab_size))
        >>> for result in play(plans, sampler=sampler, renderer=renderer, make_env=make_environment):
        ...     session = sampler.session(result.lease_id or result.episode_id)
        ...     assert ledger_violations(result.trajectory, session.completions, session.requests) == []
    """

    def __init__(self, sampler: Sampler) -> None:
        """Record what `sampler` does."""
        self._sampler = sampler
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}

    def session(self, session_id: str) -> Session:
        """Return the record for a `session_id`: the lease's or, without one, the episode's id."""
        with self._lock:
            return self._sessions.setdefault(session_id, Session())

    def submit(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Queue requests; each is answered once through `deliver`."""
        by_request: dict[str, Session] = {}
        with self._lock:
            for request in requests:
                session = self._sessions.setdefault(request.session_id, Session())
                session.requests.append(request)
                by_request[request.request_id] = session

        def record(answers: Sequence[Completion | SampleFailure]) -> None:
            for answer in answers:
                if isinstance(answer, Completion):
                    by_request[answer.request_id].completions.append(answer)
            deliver(answers)

        self._sampler.submit(requests, record)

    def close(self) -> None:
        """Close the sampler behind."""
        self._sampler.close()


def ledger_violations(
    trajectory: Trajectory,
    completions: Sequence[Completion],
    requests: Sequence[SampleRequest] = (),
) -> list[str]:
    """Return what is wrong with a trajectory's tokens; empty if nothing is.

    This checks that a token is trained on (`loss_mask`) if and only if the policy sampled it, and then has a
    finite logprob; that the tokens of each turn are those that the sampler returned, with their logprobs;
    that turns cover exactly the sampled tokens; and that each completion follows exactly the prompt it was
    sampled after.

    Args:
        trajectory: Of a finished episode. If it failed during a call of the environment, its last completion
            may have no turn.
        completions: All completions sampled for it, in order; one that came too late may be left over.
        requests: Their requests, in order; without them the prompts are not checked.
    """
    return [
        *_of_segments(trajectory),
        *_of_turns(trajectory, completions),
        *_of_cover(trajectory),
        *_of_prompts(trajectory, requests),
    ]


def _of_segments(trajectory: Trajectory) -> list[str]:
    found = []
    for number, segment in enumerate(trajectory.segments):
        lengths = {len(segment.token_ids), len(segment.loss_mask), len(segment.sampling_logprobs)}
        if len(lengths) > 1:
            found.append(f"segment {number}: token_ids, loss_mask and sampling_logprobs differ in length")
        for place, (mask, logprob) in enumerate(
            zip(segment.loss_mask, segment.sampling_logprobs, strict=False)
        ):
            if mask != (logprob is not None and math.isfinite(logprob)):
                found.append(f"segment {number}, token {place}: loss_mask is {mask}, the logprob {logprob}")
        if not any(segment.loss_mask):
            found.append(f"segment {number}: it contains no sampled tokens")
    return found


def _of_turns(trajectory: Trajectory, completions: Sequence[Completion]) -> list[str]:
    if len(trajectory.turns) > len(completions):
        return [f"there are {len(trajectory.turns)} turns, but {len(completions)} answers were sampled"]
    found = []
    end = (-1, 0)
    for number, (turn, completion) in enumerate(zip(trajectory.turns, completions, strict=False)):
        if turn.segment >= len(trajectory.segments):
            found.append(f"turn {number}: there is no segment {turn.segment}")
            continue
        segment, place = trajectory.segments[turn.segment], slice(turn.start, turn.end)
        if (turn.segment, turn.start) < end:
            found.append(f"turn {number}: it begins before the previous turn ends")
        end = turn.segment, turn.end
        if segment.token_ids[place] != completion.token_ids:
            found.append(f"turn {number}: the tokens differ from the sampled ones")
        if segment.sampling_logprobs[place] != completion.sampling_logprobs:
            found.append(f"turn {number}: the logprobs differ from those sampled with the tokens")
        if turn.policy_version != completion.policy_version:
            found.append(f"turn {number}: the policy version differs from the one that sampled")
    return found


def _of_cover(trajectory: Trajectory) -> list[str]:
    uncovered = [
        {place for place, mask in enumerate(segment.loss_mask) if mask} for segment in trajectory.segments
    ]
    found = []
    for number, turn in enumerate(trajectory.turns):
        places = set(range(turn.start, turn.end))
        if turn.segment < len(uncovered):
            if not places <= uncovered[turn.segment]:
                found.append(f"turn {number}: it covers tokens that were not sampled, or another turn's")
            uncovered[turn.segment] -= places
    left = [(number, sorted(places)) for number, places in enumerate(uncovered) if places]
    found += [f"segment {number}: the sampled tokens {places} are in no turn" for number, places in left]
    return found


def _of_prompts(trajectory: Trajectory, requests: Sequence[SampleRequest]) -> list[str]:
    return [
        f"turn {number}: the tokens before it in its segment differ from its prompt"
        for number, (turn, request) in enumerate(zip(trajectory.turns, requests, strict=False))
        if turn.segment < len(trajectory.segments)
        and trajectory.segments[turn.segment].token_ids[: turn.start] != request.prompt_ids
    ]
