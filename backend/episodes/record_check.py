"""Whether an episode's record holds together: its turns tie each sampled token to a version of the policy.

Pure. Clients write these records, and what follows reads versions and rewards off the turns alone: a token in
no turn would be of no version, and a turn without a token of its own would be paid all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from backend.learner.sequences import TokenLimits, image_fault, left_out_image
from tinkergym.errors import InvalidRequestError, UnsupportedPartError
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.trajectory.trajectory import Segment, Trajectory, Turn


def require_sound(result: EpisodeResult, limits: TokenLimits) -> None:
    """Refuse a record whose turns do not cover exactly the sampled tokens, or whose tokens are no model's.

    Args:
        result: As a client handed it in.
        limits: What the model that is trained can compute.

    Raises:
        InvalidRequestError: It says where the record contradicts itself.
        UnsupportedPartError: It has an image that the model does not take.
    """
    for trajectory in result.trajectories:
        for segment in trajectory.segments:
            ids = segment.token_ids
            if wrong := image_fault(segment.images, ids, limits) or left_out_image(
                segment.images, ids, segment.loss_mask, limits
            ):
                raise UnsupportedPartError(
                    f"agent {trajectory.agent!r}'s record of episode {result.episode_id}: {wrong}",
                    hint="hand in what AgentLoop.trajectory() returned, with the images that were shown",
                    field="results.trajectories",
                )
        wrong = _of_tokens(trajectory, limits) or _of_turns(trajectory)
        if wrong:
            raise InvalidRequestError(
                f"agent {trajectory.agent!r}'s record of episode {result.episode_id} does not hold together: "
                f"{wrong}",
                hint="hand in what AgentLoop.trajectory() returned",
                field="results.trajectories",
            )


def images_of(result: EpisodeResult) -> list[str]:
    """Return the hashes of the images in a record."""
    return [
        image.sha256
        for trajectory in result.trajectories
        for segment in trajectory.segments
        for image in segment.images
    ]


def _of_tokens(trajectory: Trajectory, limits: TokenLimits) -> str:
    for number, segment in enumerate(trajectory.segments):
        ids = segment.token_ids
        if limits.context_length is not None and len(ids) > limits.context_length:
            return f"segment {number} has {len(ids)} tokens, the model's context {limits.context_length}"
        if ids and (min(ids) < 0 or max(ids) >= limits.vocabulary):
            return f"segment {number} holds a token id outside [0, {limits.vocabulary})"
    return ""


def _of_turns(trajectory: Trajectory) -> str:
    free = (0, 0)
    for number, turn in enumerate(trajectory.turns):
        if (turn.segment, turn.start) < free:
            return f"turn {number} begins before the turn before it ends"
        free = (turn.segment, turn.end)
        wrong = _of_span(turn, trajectory.segments)
        if wrong:
            return f"turn {number} {wrong}"
    # No two share a token and all of theirs were sampled: as many are the same ones.
    left = trajectory.sampled_tokens - sum(turn.end - turn.start for turn in trajectory.turns)
    return f"{left} of the sampled tokens are in no turn" if left else ""


def _of_span(turn: Turn, segments: Sequence[Segment]) -> str:
    if turn.segment >= len(segments):
        return f"is of segment {turn.segment}, and there are {len(segments)}"
    mask = segments[turn.segment].loss_mask
    if not turn.start < turn.end <= len(mask):
        return f"has the tokens [{turn.start}, {turn.end}) of a segment of {len(mask)}"
    return "" if all(mask[turn.start : turn.end]) else "holds tokens whose loss_mask is False"
