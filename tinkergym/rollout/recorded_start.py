"""The start of a recorded episode, repeated by a sampler: its tokens stand for those of a policy.

The environment is reset with the recorded seed and gets the recorded actions. What it shows is compared with
the record token by token, at every turn; the first difference ends the episode.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinkergym.agent.renderer import Renderer
from tinkergym.agent.sampler import Deliver, Sampler
from tinkergym.errors import NotReplayableError
from tinkergym.schema.events import ErrorView
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest
from tinkergym.trajectory.trajectory import Trajectory

NOT_REPLAYABLE = "not_replayable"
"""The entry of an environment's `metadata` that says why it may not repeat an episode."""

_SHOWN_TOKENS = 60


def require_replayable(env: Any, name: str) -> None:
    """Refuse an environment that declares that it cannot be replayed.

    Raises:
        NotReplayableError: It does; the message has its reason.
    """
    why = (env.metadata or {}).get(NOT_REPLAYABLE)
    if why:
        raise NotReplayableError(f"{name} cannot be replayed: {why}", field="environment")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTurn:
    """One turn of a recorded seat: the prompt that it had, and the tokens that were sampled."""

    number: int
    """Counted from 1."""
    prompt_ids: list[int]
    images: tuple[str, ...]
    """The hashes of the prompt's images, in order."""
    completion: Completion


def recorded_turns(record: Trajectory, count: int) -> list[RecordedTurn]:
    """Return the first turns of a seat's record, as answers to the requests that they were sampled for."""
    found = []
    for number, turn in enumerate(record.turns[:count], start=1):
        segment = record.segments[turn.segment]
        completion = Completion.model_validate(
            {
                "request_id": "",
                "token_ids": segment.token_ids[turn.start : turn.end],
                "sampling_logprobs": segment.sampling_logprobs[turn.start : turn.end],
                "finish_reason": turn.finish_reason,
                "policy_version": turn.policy_version,
            }
        )
        shown = tuple(one.sha256 for one in segment.images if one.start < turn.start)
        prompt = segment.token_ids[: turn.start]
        found.append(RecordedTurn(number=number, prompt_ids=prompt, images=shown, completion=completion))
    return found


@dataclass(frozen=True, slots=True)
class Written:
    """An answer that was written by hand."""

    token_ids: list[int]

    @classmethod
    def by_hand(cls, text: str, renderer: Renderer) -> Written:
        """Return a text as the tokens of an answer, closed as the model closes answers."""
        return cls(renderer.encode_answer(text))


Given = RecordedTurn | Written
"""An answer that no policy is asked for."""


class RecordedStart:
    """A sampler that gives each session its known answers first, and then asks another sampler."""

    def __init__(
        self, then: Sampler, given: Mapping[str, Sequence[Given]], decode: Callable[[list[int]], str]
    ) -> None:
        """Wrap a sampler.

        Args:
            then: Samples what follows; the caller closes it.
            given: By session, the answers that are known, in order.
            decode: Returns the text of tokens, for the error about a difference.
        """
        self._then, self._decode = then, decode
        self._left = {session: deque(answers) for session, answers in given.items()}
        self._differs: dict[str, NotReplayableError] = {}

    def submit(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Answer what is known at once, and pass the rest on."""
        known = [request for request in requests if self._left.get(request.session_id)]
        others = [request for request in requests if not self._left.get(request.session_id)]
        if known:
            deliver([self._answer(request) for request in known])
        if others:
            self._then.submit(others, deliver)

    def close(self) -> None:
        """Close the other sampler."""
        self._then.close()

    def require_repeated(self, session: str) -> None:
        """Check, after its episode, that a session's recorded answers were all asked for.

        Raises:
            NotReplayableError: The environment showed something else, or ended the episode earlier; its
                `field` names the turn.
        """
        if error := self._differs.get(session):
            raise error
        left = [one for one in self._left.get(session, ()) if isinstance(one, RecordedTurn)]
        if left:
            raise NotReplayableError(
                f"the replayed episode ended before turn {left[0].number}, which the record has",
                hint="the environment draws from something other than its seed",
                field=f"turns.{left[0].number}",
            )

    def _answer(self, request: SampleRequest) -> Completion | SampleFailure:
        given = self._left[request.session_id].popleft()
        if isinstance(given, Written):
            kept = given.token_ids[: request.max_tokens]
            return Completion(
                request_id=request.request_id,
                token_ids=kept,
                sampling_logprobs=[0.0] * len(kept),
                finish_reason="stop" if len(kept) == len(given.token_ids) else "length",
                policy_version=0,
            )
        shown = tuple(image.sha256 for image in request.images)
        if request.prompt_ids == given.prompt_ids and shown == given.images:
            return given.completion.model_copy(update={"request_id": request.request_id})
        error = self._differs[request.session_id] = self._difference(given, request.prompt_ids)
        return SampleFailure(request_id=request.request_id, error=ErrorView(**error.to_wire()))

    def _difference(self, given: RecordedTurn, prompt_ids: list[int]) -> NotReplayableError:
        pairs = enumerate(zip(prompt_ids, given.prompt_ids, strict=False))
        shorter = min(len(prompt_ids), len(given.prompt_ids))
        at = next((place for place, (one, other) in pairs if one != other), shorter)
        now, then = (self._decode(ids[at : at + _SHOWN_TOKENS]) for ids in (prompt_ids, given.prompt_ids))
        what = f"it shows {now!r} instead of {then!r}" if now != then else "it shows another image"
        return NotReplayableError(
            f"the replay differs before turn {given.number}: {what}",
            hint="the environment, or its version here, does not repeat an episode from its seed and "
            f"actions; it can say so in metadata[{NOT_REPLAYABLE!r}]",
            field=f"turns.{given.number}",
        )
