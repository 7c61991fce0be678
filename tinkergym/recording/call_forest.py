"""CallForest: the calls of one role, each attached to the answer that it continues.

Pure. A call belongs behind the deepest answer whose whole conversation its messages repeat, compared with the
messages that were returned, never with text rendered or tokenized again. A call that repeats none begins a
new tree. So parallel calls, sub-agents, best-of-n, retries and edited histories are branches, and the tokens
that branches share exist once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinkergym.agent.growth import Reply
from tinkergym.agent.reasoning import without_reasoning
from tinkergym.messages import Message
from tinkergym.schema.sampling import Completion
from tinkergym.trajectory.content_parts import Content, ImageSpan
from tinkergym.trajectory.trajectory import Segment, Turn

Key = str
"""A message, as far as it matters for the question whether two are the same."""


def message_key(message: Mapping[str, Any]) -> Key:
    """Return what identifies a message of a request. Thoughts that clients keep in other fields do not."""
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(part, Mapping) and "text" in part for part in content):
        content = "".join(str(part["text"]) for part in content)
    role = {"developer": "system", "function": "tool"}.get(str(message.get("role")), message.get("role"))
    calls = [
        [call.get("id"), function.get("name"), _arguments(function.get("arguments"))]
        for call in message.get("tool_calls") or ()
        if isinstance(call, Mapping) and isinstance(function := call.get("function"), Mapping)
    ]
    parts = [role, content or "", calls, message.get("tool_call_id"), message.get("name")]
    return json.dumps(parts, ensure_ascii=False, sort_keys=True, default=str)


def _arguments(written: Any) -> Any:
    """Return a call's arguments; clients may write the same JSON with other spaces."""
    try:
        return json.loads(written) if isinstance(written, str) else written
    except ValueError:
        return written


def answer_keys(message: Mapping[str, Any], *, opened: bool) -> frozenset[Key]:
    """Return how a client may repeat an answer: as it was, or without its thoughts, or stripped."""
    text = message.get("content") or ""
    kept = without_reasoning(text, opened=opened)
    forms = (text, text.strip(), kept, kept.strip())
    return frozenset(message_key({**message, "content": one}) for one in forms)


@dataclass(eq=False, slots=True, kw_only=True)
class Answer:
    """One completion, with what the program was shown before it."""

    number: int
    """Of its role's completions, from 0, in the order of the calls."""
    move: int
    """Of the answers of all roles, from 1, in the order in which they were complete."""
    call: int
    """The number of its call; the choices of one call share it."""
    shown_by: str
    """The tools and the template's variables of the call. Others would write another prompt."""
    parent: Answer | None
    asked: tuple[Key, ...]
    """The messages between the parent's answer and this one; of a root, all before it."""
    said: frozenset[Key]
    """How the program may repeat the answer."""
    given_ids: Sequence[int]
    """The tokens of `asked`, behind those of the parent."""
    images: Sequence[ImageSpan]
    """Where images are in `given_ids`."""
    completion: Completion
    observation: Content
    action: Content
    opening: Sequence[Message]
    """The first messages of its tree."""
    replies: frozenset[Reply]
    """The kinds of messages between the answers up to this one."""
    depth: int
    """How many answers its conversation has, with this one."""
    seconds: float
    """When it was complete, since the session's begin."""
    untrained: str = ""
    """Why its tokens are not trained on; empty if they are."""
    children: list[Answer] = field(default_factory=list)

    @property
    def path(self) -> list[Answer]:
        """The answers from the root to this one."""
        found: list[Answer] = []
        one: Answer | None = self
        while one is not None:
            found.append(one)
            one = one.parent
        return found[::-1]

    @property
    def token_ids(self) -> list[int]:
        """All tokens of its conversation, with its own."""
        return [token for one in self.path for token in (*one.given_ids, *one.completion.token_ids)]

    @property
    def spans(self) -> list[ImageSpan]:
        """Where images are in `token_ids`."""
        found, at = list[ImageSpan](), 0
        for one in self.path:
            found += [image.moved(at) for image in one.images]
            at += len(one.given_ids) + len(one.completion.token_ids)
        return found


class CallForest:
    """The answers of one role."""

    def __init__(self) -> None:
        self.roots: list[Answer] = []
        self.answers: list[Answer] = []
        """In the order in which they were complete."""
        self._by_opening: dict[tuple[str, tuple[Key, ...]], list[Answer]] = {}
        """The roots, by their `shown_by` and `asked`: a program may begin thousands."""
        self._lengths: set[int] = set()
        """How many messages roots have before them."""

    def add(self, answer: Answer) -> None:
        """Add an answer behind its parent."""
        (self.roots if answer.parent is None else answer.parent.children).append(answer)
        if answer.parent is None:
            self._by_opening.setdefault((answer.shown_by, answer.asked), []).append(answer)
            self._lengths.add(len(answer.asked))
        self.answers.append(answer)

    def deepest(self, keys: Sequence[Key], shown_by: str) -> tuple[Answer | None, int]:
        """Return the answer that a call continues, and how many of its messages that conversation has.

        The last message is always new. Of answers to the same conversation that say the same, the one that
        fewer calls continue, then the earlier one.
        """
        best, length = None, 0
        # Only lengths that occur: long conversations would have thousands of beginnings.
        openings = [(shown_by, tuple(keys[:length])) for length in self._lengths]
        waiting = [(root, 0) for opening in openings for root in self._by_opening.get(opening, ())]
        while waiting:
            one, at = waiting.pop()
            end = at + len(one.asked)
            if end + 1 >= len(keys) or tuple(keys[at:end]) != one.asked or keys[end] not in one.said:
                continue
            order = (end + 1, -len(one.children), -one.number)
            if best is None or order > (length, -len(best.children), -best.number):
                best, length = one, end + 1
            waiting += [(child, end + 1) for child in one.children]
        return best, length

    def choose(self) -> None:
        """Decide which choices of calls with several are trained on: those that later calls continue.

        If none is, it is the first.
        """
        by_call: dict[int, list[Answer]] = {}
        for one in self.answers:
            by_call.setdefault(one.call, []).append(one)
        for choices in by_call.values():
            if len(choices) > 1:
                chosen = [one for one in choices if one.children] or choices[:1]
                for one in choices:
                    if one not in chosen and not one.untrained:
                        one.untrained = "not_chosen"

    def record(self, rewarded: float) -> tuple[list[Segment], list[Turn]]:
        """Return the segments, and the turns in their order; the last one has the reward.

        An answer is in one segment, where it is trained on. A branch begins a segment with the tokens before
        it, which are not trained on again.
        """
        segments: list[Segment] = []
        turns: list[Turn] = []
        for chain in self._chains():
            segment, own = _segment(chain, len(segments))
            segments.append(segment)
            turns += own
        if turns:
            turns[-1] = turns[-1].model_copy(update={"reward": rewarded})
        return segments, turns

    def _chains(self) -> Iterator[list[Answer]]:
        """Yield the answers of each segment: one, its earliest continuation, and so on; then the branches.

        What follows the last trained answer of a chain is left out.
        """
        waiting = sorted(self.roots, key=_by_number, reverse=True)
        while waiting:
            chain = [waiting.pop()]
            branches: list[Answer] = []
            while chain[-1].children:
                first, *others = sorted(chain[-1].children, key=_by_number)
                branches += others
                chain.append(first)
            waiting += sorted(branches, key=_by_number, reverse=True)
            last = max((place for place, one in enumerate(chain) if not one.untrained), default=-1)
            if last >= 0:
                yield chain[: last + 1]


def _by_number(answer: Answer) -> int:
    return answer.number


def _segment(chain: Sequence[Answer], number: int) -> tuple[Segment, list[Turn]]:
    """Return a chain as a segment and its turns; see `CallForest.record`."""
    before = chain[0].parent
    ids: list[int] = [] if before is None else before.token_ids
    logprobs: list[float | None] = [None] * len(ids)
    turns: list[Turn] = []
    for one in chain:
        start = len(ids) + len(one.given_ids)
        sampled = one.completion.token_ids
        ids += [*one.given_ids, *sampled]
        logprobs += [None] * len(one.given_ids)
        logprobs += [None] * len(sampled) if one.untrained else one.completion.sampling_logprobs
        if one.untrained:
            continue
        turns.append(
            Turn(
                segment=number,
                start=start,
                end=len(ids),
                policy_version=one.completion.policy_version,
                finish_reason=one.completion.finish_reason,
                observation=one.observation,
                action=one.action,
                reward=0.0,
                move=one.move,
                seconds=one.seconds,
            )
        )
    # Valid by construction; checking every token again would double the cost of an episode.
    segment = Segment.model_construct(
        token_ids=ids,
        loss_mask=[logprob is not None for logprob in logprobs],
        sampling_logprobs=logprobs,
        images=chain[-1].spans,
    )
    return segment, turns
