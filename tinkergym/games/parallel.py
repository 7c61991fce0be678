"""PettingZoo's parallel games, whose agents all act at once, as games with turns."""

from __future__ import annotations

from typing import Any


def with_turns(game: Any) -> Any:
    """Return a PettingZoo game as an AEC one; a parallel one is converted with PettingZoo's own wrapper.

    The agents of a round then act one after the other, but none sees what another did, and nothing happens
    before all have acted.
    """
    if hasattr(game, "agent_iter"):
        return game
    from pettingzoo.utils.conversions import parallel_to_aec

    return parallel_to_aec(game)
