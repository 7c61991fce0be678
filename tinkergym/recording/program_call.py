"""A call of a program: what it asked, where it belongs, and its completions once they are sampled."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from tinkergym.agent.growth import Reply
from tinkergym.messages import Message
from tinkergym.openai_api.chat_request import ChatRequest
from tinkergym.openai_api.token_requests import Prompt
from tinkergym.recording.call_forest import Answer
from tinkergym.schema.sampling import Completion, SampleRequest
from tinkergym.trajectory.content_parts import ImageSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a call's answers belong in the forest of its role; see `Answer`."""

    parent: Answer | None
    shown_by: str
    asked: tuple[str, ...]
    given_ids: list[int]
    images: list[ImageSpan]
    new: Sequence[Message]
    opening: Sequence[Message]
    replies: frozenset[Reply]


@dataclass(eq=False, slots=True, kw_only=True)
class Call:
    """A call of the program: what it asked, and the completions once they are sampled."""

    role: str
    wanted: ChatRequest
    body: bytes
    """Identifies repeats of the call by its client."""
    number: int
    """Among the calls of its role, from 0."""
    first: int
    """The number of its first completion among those of its role."""
    prompt: Prompt
    requests: Sequence[SampleRequest]
    place: Place
    untrained: str
    """Why it is not trained on: the field of the request; empty if it is."""
    retry: int = 0
    """The newest repeat that got its answer."""
    found: dict[str, Completion] = field(default_factory=dict)
    failure: Exception | None = None
    over: threading.Event = field(default_factory=threading.Event)
    """Set when it is answered or has failed."""
    answers: list[Answer] = field(default_factory=list)
    is_delivered: bool = False
    """Whether the program has the answer, as far as is known."""

    @property
    def completions(self) -> list[Completion]:
        """The completions in the order of the choices."""
        return [self.found[one.request_id] for one in self.requests]
