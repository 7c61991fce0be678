"""The turns of a trajectory as a tree: which answer each one continues. Pure; read from the tokens alone."""

from __future__ import annotations

from tinkergym.trajectory.content_parts import content_text
from tinkergym.trajectory.trajectory import Trajectory


def turn_parents(trajectory: Trajectory) -> list[int | None]:
    """Return for each turn the number of the turn that it continues; None if it begins a conversation.

    Within a segment that is the turn before. The first turn of a segment continues the deepest earlier answer
    with which the segment begins.
    """
    parents: list[int | None] = []
    for number, turn in enumerate(trajectory.turns):
        before = trajectory.turns[number - 1] if number else None
        if before is not None and before.segment == turn.segment:
            parents.append(number - 1)
            continue
        own = trajectory.segments[turn.segment].token_ids[: turn.start]
        deepest = max(
            (
                (other.end, place)
                for place, other in enumerate(trajectory.turns[:number])
                if other.end <= turn.start
                and trajectory.segments[other.segment].token_ids[: other.end] == own[: other.end]
            ),
            default=None,
        )
        parents.append(None if deepest is None else deepest[1])
    return parents


def call_tree(trajectory: Trajectory) -> str:
    """Return the turns as indented lines, each below the one that it continues."""
    parents = turn_parents(trajectory)
    below: dict[int | None, list[int]] = {}
    for number, parent in enumerate(parents):
        below.setdefault(parent, []).append(number)
    lines: list[str] = []
    waiting = [(number, 0) for number in reversed(below.get(None, []))]
    # A stack of its own, because a conversation may be deeper than Python recurses.
    while waiting:
        number, depth = waiting.pop()
        turn = trajectory.turns[number]
        shown, said = (_brief(content_text(one)) for one in (turn.observation, turn.action))
        lines.append(f"{'  ' * depth}{shown} -> {said}")
        waiting += [(child, depth + 1) for child in reversed(below.get(number, []))]
    return "\n".join(lines)


def _brief(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."
