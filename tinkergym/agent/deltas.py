"""What each turn adds to an episode's tokens."""

from __future__ import annotations

from collections.abc import Sequence

from tinkergym.agent.growth import ASKED
from tinkergym.agent.renderer import TURNS_TRIED, Renderer
from tinkergym.messages import Message
from tinkergym.trajectory.ledger import Ledger


class Deltas:
    """The conversation of an episode as later turns see it, and the ids that follow each answer.

    Sampled tokens are never rendered again in the segment they were sampled in.
    """

    def __init__(self, renderer: Renderer, ledger: Ledger, opening: list[Message]) -> None:
        """Begin a conversation.

        Args:
            renderer: Turns messages into ids.
            ledger: The episode's tokens; a new segment is opened where the template rewrites earlier text.
            opening: The messages before the first answer.

        Raises:
            TemplateError: The template fails on them.
        """
        self._renderer, self._ledger = renderer, ledger
        self._history, self._opening = opening, list(opening)
        self._replies = frozenset([ASKED])
        """The kinds of replies with which the template was tried."""
        self._tried_turns = TURNS_TRIED
        self._rewrites = not renderer.grows(self._opening, self._replies, self._tried_turns)
        """Whether deltas differ from the template's text of this conversation."""

    def after(
        self, answer: Sequence[int] | None, spoken: Message, reply: list[Message], *, turns: int
    ) -> tuple[list[int], list[Message]]:
        """Return the ids that follow an answer, and the messages that they show.

        Args:
            answer: Its sampled ids; None if later turns do not see all of it.
            spoken: The answer as later turns see it.
            reply: The messages after it.
            turns: The number of answers so far.

        Raises:
            TemplateError: The template does not support a message.
            UnsupportedPartError: The model does not support a part of a message.
        """
        self._history += [spoken, *reply]
        if answer is not None and self._grows(reply, turns):
            delta = self._renderer.delta(answer, reply)
            if delta is not None:
                return delta, reply
        return self._edited(), self._history

    def _grows(self, reply: list[Message], turns: int) -> bool:
        """Whether the template only ever appends to this conversation.

        Checked again when its form changes.
        """
        kind = (reply[0]["role"],) if len(reply) == 1 else tuple([message["role"] for message in reply])
        if not self._rewrites and (kind not in self._replies or turns >= self._tried_turns):
            self._replies |= {kind}
            while turns >= self._tried_turns:
                self._tried_turns *= 2
            self._rewrites = not self._renderer.grows(self._opening, self._replies, self._tried_turns)
        return not self._rewrites

    def _edited(self) -> list[int]:
        """Render the conversation from scratch; return what follows in the open segment, or in a new one.

        Sampled tokens stay unchanged in the segment they were sampled in; in the new one they are history.
        """
        token_ids, open_ids = self._renderer.start(self._history), self._ledger.context()
        if token_ids[: len(open_ids)] == open_ids:
            return token_ids[len(open_ids) :]
        self._ledger.open_segment()
        return token_ids
