"""Whether an episode's record is consistent: its turns must assign each sampled token to a policy version.

Pure. Clients write these records, and later code reads versions and rewards only from the turns: a token
outside all turns would have no version, and a turn without tokens would still be rewarded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backend.learner.sequences import TokenLimits, image_fault, left_out_image
from tinkergym.errors import InvalidRequestError, UnsupportedPartError
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.trajectory.trajectory import Segment, Trajectory, Turn


def require_sound(
    result: EpisodeResult, limits: TokenLimits, *, seats: Mapping[str, TokenLimits] | None = None
) -> None:
    """Refuse a record whose turns do not cover exactly the sampled tokens, or with invalid token ids.

    Args:
        result: As submitted by a client.
        limits: Limits of the job's base model.
        seats: Limits of the seats that a policy on another base model played, by agent.

    Raises:
        InvalidRequestError: The record is inconsistent. The message says where.
        UnsupportedPartError: It has an image that the model does not support.
    """
    for trajectory in result.trajectories:
        own = (seats or {}).get(trajectory.agent, limits)
        for segment in trajectory.segments:
            ids = segment.token_ids
            if wrong := image_fault(segment.images, ids, own) or left_out_image(
                segment.images, ids, segment.loss_mask, own
            ):
                raise UnsupportedPartError(
                    f"agent {trajectory.agent!r}'s record of episode {result.episode_id}: {wrong}",
                    hint="submit what AgentLoop.trajectory() returned, with the images that were shown",
                    field="results.trajectories",
                )
        wrong = _of_tokens(trajectory, own) or _of_turns(trajectory)
        if wrong:
            raise InvalidRequestError(
                f"agent {trajectory.agent!r}'s record of episode {result.episode_id} is inconsistent: "
                f"{wrong}",
                hint="submit what AgentLoop.trajectory() returned",
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
            return (
                f"segment {number} has {len(ids)} tokens, more than the model's context of "
                f"{limits.context_length}"
            )
        if ids and (min(ids) < 0 or max(ids) >= limits.vocabulary):
            return f"segment {number} contains a token id outside [0, {limits.vocabulary})"
    return ""


def _of_turns(trajectory: Trajectory) -> str:
    free = (0, 0)
    for number, turn in enumerate(trajectory.turns):
        if (turn.segment, turn.start) < free:
            return f"turn {number} begins before the previous turn ends"
        free = (turn.segment, turn.end)
        wrong = _of_span(turn, trajectory.segments)
        if wrong:
            return f"turn {number} {wrong}"
    # Turns do not overlap and all their tokens were sampled, so equal counts mean the same tokens.
    left = trajectory.sampled_tokens - sum(turn.end - turn.start for turn in trajectory.turns)
    return f"{left} of the sampled tokens are in no turn" if left else ""


def _of_span(turn: Turn, segments: Sequence[Segment]) -> str:
    if turn.segment >= len(segments):
        return f"is in segment {turn.segment}, but there are {len(segments)} segments"
    mask = segments[turn.segment].loss_mask
    if not turn.start < turn.end <= len(mask):
        return f"has the tokens [{turn.start}, {turn.end}) of a segment with {len(mask)} tokens"
    return "" if all(mask[turn.start : turn.end]) else "contains tokens whose loss_mask is False"
