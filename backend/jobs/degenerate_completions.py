"""Completions that are not language: garbled ones, and those that repeat themselves or each other. Pure.

Looked at once per step, while the next step's episodes are played.
"""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence

from backend.episodes.played import PlayedSeat, first_episodes
from tinkergym.schema.events import WarningEvent
from tinkergym.trajectory.content_parts import content_text
from tinkergym.trajectory.trajectory import MOST_TOKENS, Trajectory, Turn

_FEW = 4
"""Fewer completions are not enough to warn."""
_MANY = 0.1
"""Of the completions of a step."""
_MOST_CHARACTERS = 4000
_MOST_GARBLED = 0.05
"""Of a completion's characters. A byte that is no text, or a rare symbol, occurs in good ones, too."""
_GARBLED_KINDS = {"Cc", "Cn", "Co", "Cs"}
"""Control characters, and those that have no meaning; not the joiners of emoji and scripts, `Cf`."""
_ENDS = 128, 512
"""Tokens. A loop rarely ends by itself: the short end shows that one has begun, the long one shows
those of whole sentences."""
_LOOP = 4
"""Tokens of which a loop is made at least, as in the usual measures of repetition."""
_FEWEST_TOKENS = 64
"""Shorter completions, such as moves of a game, repeat for good reasons."""
_LEAST_VARIED = 0.2
"""Different sequences of `_LOOP` tokens, of all. Sparse boards and padded tables have as few, but end."""
_SAME = 0.25
"""Of a step's episodes with long completions."""


def degenerate_warnings(step: int, seats: Sequence[PlayedSeat]) -> list[WarningEvent]:
    """Return a warning each if many completions of a step are garbled, loop, or are the same."""
    count = sum(len(seat.trajectory.turns) for seat in seats)
    garbled, looping = list[PlayedSeat](), list[PlayedSeat]()
    # Whole episodes: agents may well begin every task with the same call.
    by_tokens: dict[tuple[int, ...], list[PlayedSeat]] = defaultdict(list)
    for seat in seats:
        turns = seat.trajectory.turns
        for turn in turns:
            if is_garbled(content_text(turn.action)):
                garbled.append(seat)
            if turn.finish_reason == "length" and loops(_sampled(seat.trajectory, turn, _ENDS[-1])):
                looping.append(seat)
        if any(turn.end - turn.start >= _FEWEST_TOKENS for turn in turns):
            # By hashes, as the tokens of a large step would fill memory.
            by_tokens[tuple(hash(tuple(_sampled(seat.trajectory, turn))) for turn in turns)].append(seat)
    found = []
    if len(garbled) >= max(_FEW, _MANY * count):
        found.append(_garbled(step, garbled, count))
    if len(looping) >= max(_FEW, _MANY * count):
        found.append(_looping(step, looping, count))
    long = sum(map(len, by_tokens.values()))
    same = max(by_tokens.values(), key=len, default=[])
    # The episodes of one group have the same task: a sure policy may well say the same.
    if len(same) >= max(_FEW, _SAME * long) and len({seat.request.group for seat in same}) > 1:
        found.append(_same(step, same, long))
    return found


def is_garbled(text: str) -> bool:
    """Whether more than 1 in 20 characters are undecodable bytes, control characters or unassigned."""
    text = text[:_MOST_CHARACTERS]
    # A limit may cut a character in two; what is left of it says nothing.
    text = text.rstrip("\ufffd") if text.count("\ufffd") <= 3 else text
    if "\ufffd" not in text and "".join(text.split()).isprintable():  # as nearly always
        return False
    counted = Counter(text)
    strange = sum(
        times
        for character, times in counted.items()
        if character == "\ufffd"
        or (unicodedata.category(character) in _GARBLED_KINDS and not character.isspace())
    )
    return strange > max(1, _MOST_GARBLED * len(text))


def loops(token_ids: Sequence[int]) -> bool:
    """Whether a completion's tokens say the same few things again and again at its end."""
    if len(token_ids) < _FEWEST_TOKENS:
        return False
    return any(_varied(token_ids[-end:]) < _LEAST_VARIED for end in _ENDS)


def _varied(token_ids: Sequence[int]) -> float:
    sequences = set(zip(*(token_ids[at:] for at in range(_LOOP)), strict=False))
    return len(sequences) / (len(token_ids) - _LOOP + 1)


def _sampled(trajectory: Trajectory, turn: Turn, newest: int = MOST_TOKENS) -> Sequence[int]:
    return trajectory.segments[turn.segment].token_ids[max(turn.start, turn.end - newest) : turn.end]


def _garbled(step: int, seats: Sequence[PlayedSeat], count: int) -> WarningEvent:
    return _warning(
        "garbled_completions",
        step,
        seats,
        f"{len(seats)} of the {count} completions of step {step} have undecodable bytes or control "
        "characters for more than 1 in 20 characters. The policy no longer writes text: continue from an "
        "earlier version with a lower learning rate or temperature, and check the tokenizer",
    )


def _looping(step: int, seats: Sequence[PlayedSeat], count: int) -> WarningEvent:
    return _warning(
        "looping_completions",
        step,
        seats,
        f"{len(seats)} of the {count} completions of step {step} say the same few words again and again "
        "until a limit cuts them. Raise sampling.temperature, lower sampling.max_turn_tokens, or reward "
        "shorter answers",
    )


def _same(step: int, seats: Sequence[PlayedSeat], count: int) -> WarningEvent:
    return _warning(
        "repeated_completions",
        step,
        seats,
        f"In {len(seats)} of the {count} episodes with long completions of step {step} the policy said the "
        "same, in different groups: it answers without regard to the task. Check that the task is in the "
        "prompt and that the reward depends on it, or raise sampling.temperature",
    )


def _warning(name: str, step: int, seats: Sequence[PlayedSeat], message: str) -> WarningEvent:
    episodes = first_episodes(seats)
    return WarningEvent(name=name, message=message, step=step, count=len(seats), episodes=episodes)
