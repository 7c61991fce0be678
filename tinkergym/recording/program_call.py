"""A call of a program: what it asked, where it belongs, and its completions once they are sampled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tinkergym.agent.growth import Reply
from tinkergym.messages import Message
from tinkergym.openai_api.chat_request import ChatRequest
from tinkergym.openai_api.token_requests import Prompt
from tinkergym.recording.call_forest import Answer
from tinkergym.schema.sampling import Completion, CompletionPart, SampleFailure, SampleRequest
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
    parts: list[CompletionPart] = field(default_factory=list)
    """What has arrived of the completions, if it is a stream; empty once they are there."""
    was_streamed: bool = False
    """Whether parts had arrived when it ended."""
    failure: Exception | None = None
    is_over: bool = False
    """Whether it is answered or has failed."""
    answers: list[Answer] = field(default_factory=list)
    is_delivered: bool = False
    """Whether the program has the answer, as far as is known."""
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def completions(self) -> list[Completion]:
        """The completions in the order of the choices."""
        return [self.found[one.request_id] for one in self.requests]

    def add(self, parts: Sequence[CompletionPart]) -> None:
        """Take tokens of unfinished completions."""
        with self._changed:
            if not self.is_over:
                self.parts += parts
                self._changed.notify_all()

    def end(self) -> None:
        """Note that it is answered or has failed."""
        with self._changed:
            self.is_over = True
            # A session may have thousands of calls. Who is still reading has the list.
            self.was_streamed, self.parts = bool(self.parts), []
            self._changed.notify_all()

    def wait(self) -> list[Completion]:
        """Wait until it is answered; return the completions in the order of the choices.

        Raises:
            TinkerGymError: It failed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.is_over)
        if self.failure is not None:
            raise self.failure
        return self.completions

    def arriving(self, seconds: float) -> Iterator[CompletionPart | None]:
        """Yield its parts, from the first, as they arrive; None whenever none has come for so long.

        Who begins to read once it is over gets none: the completions have all.
        """
        parts, seen, is_over = self.parts, 0, False
        while not is_over:
            with self._changed:
                if len(parts) == seen and not self.is_over:
                    self._changed.wait(seconds)
                new, is_over = parts[seen:], self.is_over
            yield from new if new or is_over else [None]
            seen += len(new)

    def leave_out_unread(self) -> None:
        """Leave answers out of training that the program has not read, as far as is known."""
        why = "interrupted" if self.was_streamed else "undelivered"
        for answer in self.answers:
            # A call that goes on from an answer shows that it was read.
            if not (self.is_delivered or answer.children):
                answer.untrained = answer.untrained or why

    def is_as_streamed(self, whole: Completion) -> bool:
        """Whether a completion is what its parts were; a restarted engine may have sampled another."""
        return all(
            whole.token_ids[part.start : part.start + len(part.token_ids)] == part.token_ids
            for part in self.parts
            if part.request_id == whole.request_id
        )


@dataclass(frozen=True, slots=True)
class Delivery:
    """Passes what is sampled for a call to its session; implements `tinkergym.agent.sampler.Deliver`."""

    call: Call
    take: Callable[[Call, Sequence[Completion | SampleFailure]], None]

    def __call__(self, answers: Sequence[Completion | SampleFailure]) -> None:
        """Pass on completions."""
        self.take(self.call, answers)

    def parts(self, parts: Sequence[CompletionPart]) -> None:
        """Pass on tokens of unfinished ones."""
        self.call.add(parts)
