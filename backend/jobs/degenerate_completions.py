"""Completions that are not language: garbled ones, and those that repeat themselves or each other. Pure.

Looked at once per step, while the next step's episodes are played. The time per completion has a bound,
whatever its length.
"""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence

from backend.episodes.played import PlayedSeat, first_episodes
from tinkergym.schema.events import WarningEvent
from tinkergym.trajectory.content_parts import content_text
from tinkergym.trajectory.trajectory import Trajectory, Turn

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
"""Tokens. A loop rarely ends before the completion does: the short end shows that one has begun, the long one
shows those of whole sentences."""
_LOOP = 4
"""Tokens of which a loop is made at least, as in the usual measures of repetition."""
_FEWEST_TOKENS = 64
"""Shorter completions, such as moves of a game, repeat for good reasons."""
_LEAST_VARIED = 0.2
"""Different sequences of `_LOOP` tokens, of all: text has more than 0.9, tables and JSON more than 0.4."""
_SAME = 0.25
"""Of a step's long completions."""


def degenerate_warnings(step: int, seats: Sequence[PlayedSeat]) -> list[WarningEvent]:
    """Return a warning each if many completions of a step are garbled, loop, or are the same."""
    count = sum(len(seat.trajectory.turns) for seat in seats)
    garbled, looping = list[PlayedSeat](), list[PlayedSeat]()
    by_text: dict[str, list[PlayedSeat]] = defaultdict(list)
    long = 0
    for seat in seats:
        for turn in seat.trajectory.turns:
            text = content_text(turn.action)
            if is_garbled(text):
                garbled.append(seat)
            if turn.end - turn.start >= _FEWEST_TOKENS:
                long += 1
                by_text[text].append(seat)
                if loops(_newest_tokens(seat.trajectory, turn)):
                    looping.append(seat)
    found = []
    if len(garbled) >= max(_FEW, _MANY * count):
        found.append(_garbled(step, garbled, count))
    if len(looping) >= max(_FEW, _MANY * count):
        found.append(_looping(step, looping, count))
    same = max(by_text.values(), key=len, default=[])
    # The episodes of one group have the same task: a sure policy may well say the same.
    if len(same) >= max(_FEW, _SAME * long) and len({seat.group for seat in same}) > 1:
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


def _newest_tokens(trajectory: Trajectory, turn: Turn) -> Sequence[int]:
    return trajectory.segments[turn.segment].token_ids[max(turn.start, turn.end - _ENDS[-1]) : turn.end]


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
        f"{len(seats)} of the {count} completions of step {step} end by saying the same few words again and "
        "again. Raise sampling.temperature, lower sampling.max_turn_tokens, or reward shorter answers",
    )


def _same(step: int, seats: Sequence[PlayedSeat], count: int) -> WarningEvent:
    return _warning(
        "repeated_completions",
        step,
        seats,
        f"{len(seats)} of the {count} long completions of step {step} are the same, in different groups: the "
        "policy answers without regard to the task. Check that the task is in the prompt and that the reward "
        "depends on it, or raise sampling.temperature",
    )


def _warning(name: str, step: int, seats: Sequence[PlayedSeat], message: str) -> WarningEvent:
    episodes = first_episodes(seats)
    return WarningEvent(name=name, message=message, step=step, count=len(seats), episodes=episodes)
