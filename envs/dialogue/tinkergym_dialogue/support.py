"""Support: an agent with tools and a customer, as a game of two seats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from tinkergym.errors import (
    IllegalMoveError,
    InvalidRequestError,
    ToolArgumentsError,
    ToolError,
)
from tinkergym.games.text_game import TextGame
from tinkergym.messages import is_unicode
from tinkergym.tool_calls.call import MalformedCall, ToolCall
from tinkergym.tool_calls.syntax import typed_arguments
from tinkergym.tools import Tool
from tinkergym_dialogue import calls as writing
from tinkergym_dialogue.calls import CALLS, Calls
from tinkergym_dialogue.case import Case
from tinkergym_dialogue.customers import (
    MOST_CHARACTERS,
    customer_1,
    persona_1,
    says_bye,
)
from tinkergym_dialogue.shop import Shop, right_contents

AGENT, CUSTOMER = 0, 1


class Support(TextGame):
    """Undo the order that a customer does not want: cancel it if it is open, take it back if it is closed.

    The agent calls tools on the shop's SQLite database, or says something to the customer, who may have to be
    asked which order it is. The dialogue ends when the customer says bye, or at the limit of turns. Both
    players earn 1 if the database then is as it should be, in every row, and else 0.
    """

    players = ("the agent", "the customer")
    agents = ("agent", "customer")
    opponents: Sequence[str] = ("customer_1",)

    def __init__(
        self,
        calls: Calls = "words",
        most_turns: int = 8,
        instructions: bool = False,
    ) -> None:
        """Choose the form of the dialogue.

        Args:
            calls: How the agent writes tool calls: `words` lists the commands with every observation;
                `hermes`, `xml` and `json` describe the tools at the beginning.
            most_turns: Limit on the agent's turns, tool calls included: 2 to 100.
            instructions: With `words`, explain the rules at the beginning.

        Raises:
            InvalidRequestError: A setting is out of range.
        """
        if calls not in CALLS:
            raise InvalidRequestError(f"must be one of {', '.join(CALLS)}, not {calls!r}", field="calls")
        if isinstance(most_turns, bool) or not isinstance(most_turns, int) or not 2 <= most_turns <= 100:
            raise InvalidRequestError(f"must be from 2 to 100, not {most_turns!r}", field="most_turns")
        self._calls, self._most_turns = calls, most_turns
        self._prompt = writing.prompt(calls, instructions)
        self._shop: Shop | None = None

    def begin(self, rng: np.random.Generator) -> None:
        """Draw the case and fill the database."""
        if self._shop is not None:
            self._shop.close()
        self.case = Case.drawn_by(rng)
        self._shop = Shop(self.case)
        self._tools: dict[str, Tool] = {
            tool.name: tool
            for tool in (self._shop.list_orders, self._shop.cancel_order, self._shop.return_order)
        }
        self.dialogue: list[tuple[int, str]] = []
        """Who said what."""
        self._turns, self._next, self._knows = 0, CUSTOMER, not self.case.vague
        self._counts: Counter[str] = Counter()

    def first_player(self) -> int:
        """Let the customer begin."""
        return CUSTOMER

    def next_player(self, player: int) -> int:
        """Return who is spoken to; after a tool call it is the agent's turn again."""
        del player
        return self._next

    def opening(self, player: int) -> str:
        """Return the agent's instructions, or who the customer is."""
        return self._prompt if player == AGENT else persona_1(self.case)

    def observe(self, player: int) -> str:
        """Return the commands, where calls are written in words."""
        return f"Commands: {', '.join(self.legal(player))}" if self._lists(player) else ""

    def legal(self, player: int) -> list[str]:
        """Return what can be called, and a few things to say; any other text is said, too."""
        items = self.case.items
        if player == CUSTOMER:
            return [*(f"I do not want the {item}." for item in items), *(f"The {i}." for i in items), "bye"]
        words = [("look", ""), *((word, item) for word in ("drop", "take") for item in items)]
        return ["which", *(writing.written(word, item, self._calls) for word, item in words), "bye"]

    def read(self, player: int, action: str) -> Any:
        """Return the text. A customer may say anything: silence is no fault of the agent's."""
        text = action.strip()
        if player == CUSTOMER:
            return text[:MOST_CHARACTERS].encode("utf-8", "replace").decode() or "..."
        if not text:
            raise IllegalMoveError("an empty message")
        if len(text) > MOST_CHARACTERS:
            raise IllegalMoveError(f"a message of more than {MOST_CHARACTERS} characters")
        if not is_unicode(text):
            raise IllegalMoveError("a message with characters that are no Unicode text")
        return text

    def play(self, player: int, move: Any) -> list[float] | None:
        """Run the agent's calls, or tell the other what was said."""
        if player == CUSTOMER:
            return self._customer_says(move)
        self._turns += 1
        found = writing.read(move, self.case.items, self._calls)
        if found:
            self._next = AGENT
            self.tell("\n".join(self._result(call) for call in found), AGENT)
        else:
            self._next = CUSTOMER
            self._counts["asked"] |= self._asks(move)
            self.dialogue.append((AGENT, move))
            self.tell(f"Agent: {move}", CUSTOMER)
        if self._turns < self._most_turns:
            return None
        self.truncate()
        return self._judged()

    def customer_1(self, player: int, rng: np.random.Generator) -> str:
        """Say what the script says."""
        del player, rng
        heard = self.dialogue[-1][1] if self.dialogue else None
        return customer_1(self.case, heard, self._acted)

    def gold(self, player: int) -> str | None:
        """Return the agent's best action: ask if need be, look, undo the order, say goodbye."""
        if player == CUSTOMER:
            return None
        if self._acted:
            return "bye"
        if not self._knows:
            return "which"
        if not self._counts["looked"]:
            return writing.written("look", "", self._calls)
        return writing.written("drop" if self.case.status == "open" else "take", self.case.item, self._calls)

    def verdict(self, player: int, total: float) -> str:
        """Return whether the database is as it should be."""
        del player
        return "The order is undone." if total > 0 else "The database is not as it should be."

    def metrics(self, player: int, total: float) -> dict[str, float]:
        """Return the reward's one term, and for the agent how it worked."""
        if player == CUSTOMER:
            return {"reward/database": total}
        names = ("tool_calls", "tool_errors", "malformed_tool_calls", "looked", "asked")
        return {"reward/database": total, **{name: float(self._counts[name]) for name in names}}

    def forfeit(self, losers: Collection[int]) -> Sequence[float]:
        """Pay nothing to anybody when the agent says what nobody can hear."""
        del losers
        return [0.0, 0.0]

    def render(self) -> str:
        """Return the dialogue."""
        return "\n".join(f"{'Agent' if who == AGENT else 'Customer'}: {text}" for who, text in self.dialogue)

    @property
    def _acted(self) -> bool:
        return self._counts["changes"] > 0

    def _lists(self, player: int) -> bool:
        return player == AGENT and self._calls == "words"

    def _asks(self, text: str) -> bool:
        return "?" in text or "which" in text.casefold()

    def _customer_says(self, text: str) -> list[float] | None:
        self._knows = self._knows or self.case.item in text.casefold()
        self._next = AGENT
        self.dialogue.append((CUSTOMER, text))
        self.tell(f"Customer: {text}", AGENT)
        return self._judged() if says_bye(text) else None

    def _judged(self) -> list[float]:
        assert self._shop is not None
        reward = float(self._shop.contents() == right_contents(self.case))
        self._shop.close()
        self._shop = None
        return [reward, reward]

    def _result(self, call: ToolCall | MalformedCall) -> str:
        """Run a call and return what the agent is shown of it."""
        if isinstance(call, MalformedCall):
            self._counts["malformed_tool_calls"] += 1
            return writing.shown("", f"error: the call cannot be read: {call.problem}", self._calls)
        tool = self._tools.get(call.name)
        if tool is None:
            self._counts["malformed_tool_calls"] += 1
            known = ", ".join(self._tools)
            return writing.shown("", f"error: there is no such tool; the tools are: {known}", self._calls)
        arguments = call.arguments
        if self._calls == "xml":
            arguments = typed_arguments(arguments, tool.parameters)
        try:
            text = tool.call(arguments)
        except ToolArgumentsError as error:
            self._counts["malformed_tool_calls"] += 1
            return writing.shown(tool.name, f"error: {error}", self._calls)
        except ToolError as error:
            self._counts["tool_calls"] += 1
            self._counts["tool_errors"] += 1
            return writing.shown(tool.name, f"error: {error}", self._calls)
        self._counts["tool_calls"] += 1
        self._counts["looked" if tool.name == "list_orders" else "changes"] += 1
        return writing.shown(tool.name, text, self._calls)
