"""The agent's seat as an environment: a script plays the customer."""

from __future__ import annotations

from tinkergym.games.against_opponent import AgainstOpponent
from tinkergym.registration.games import make_against_opponent
from tinkergym_dialogue.calls import Calls


def support(
    opponent: str = "customer_1",
    calls: Calls = "words",
    most_turns: int = 8,
    instructions: bool = False,
    *,
    on_illegal: str = "lose",
    render_mode: str | None = None,
) -> AgainstOpponent:
    """Return the environment.

    Args:
        opponent: The script that plays the customer.
        calls: How the agent writes tool calls: `words`, `hermes`, `xml` or `json`.
        most_turns: Limit on the agent's turns, tool calls included.
        instructions: With `words`, explain the rules at the beginning.
        on_illegal: How a message that is empty or too long is handled.
        render_mode: `ansi` lets `render` return the dialogue.
    """
    return make_against_opponent(
        "dialogue/Support-v0",
        opponent=opponent,
        seat="first",
        on_illegal=on_illegal,
        render_mode=render_mode,
        calls=calls,
        most_turns=most_turns,
        instructions=instructions,
    )
