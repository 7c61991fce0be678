"""Round trip: whether conversations built turn by turn have the chat template's tokens.

Plays made-up conversations with the agent loop and compares each prompt with the template's text.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tinkergym.agent.agent_loop import AgentLoop
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.prompt_check import TemplateReference, prompt_fault
from tinkergym.agent.reasoning import without_reasoning
from tinkergym.agent.renderer import TURNS_TRIED, Renderer
from tinkergym.errors import TemplateError
from tinkergym.messages import Message, assistant, system, user
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.jobs.parts import Limits, Reasoning
from tinkergym.schema.sampling import Completion, SampleRequest
from tinkergym.schema.views import RendererBundle

_NO_LIMIT = 10_000_000
_MOST_QUOTED = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationResult:
    """The result for one synthetic conversation."""

    name: str
    outcome: str
    """`same`, `different`, or `refused` by the template."""
    detail: str = ""
    segments: int = 1
    """Number of segments of the conversation, if its answers end as in the template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrip:
    """The results for a model's renderer."""

    prefix_preserving: bool
    """Whether the template keeps past answers as they were sampled."""
    rewrites_history: bool
    """Whether it changes earlier text, so that the loop opens a segment in each turn."""
    conversations: tuple[ConversationResult, ...]

    @property
    def exact(self) -> bool:
        """Whether no conversation differs outside the policy's answers."""
        return all(result.outcome != "different" for result in self.conversations)


@dataclass(frozen=True, slots=True)
class Played:
    """The outcome of a conversation."""

    fault: str
    """Where a prompt differs from the template's text; "" if nowhere."""
    segments: int
    refusal: str = ""
    """Why the template refused the conversation; "" if it did not."""


def round_trip(bundle: RendererBundle) -> RoundTrip:
    """Play synthetic conversations with a model's renderer and compare each prompt with the template's text.

    Each is played with answers that end as in the template, that a limit cuts off, and that end with each
    other stop token.

    Raises:
        TemplateError: The renderer cannot be built, or the template refuses the plainest conversation.
    """
    renderer = Renderer.from_bundle(bundle.model_copy(update={"context_length": _NO_LIMIT}))
    reference = TemplateReference(bundle)
    results = []
    for name, opening, replies, thought in _conversations(reference.special_texts):
        played = [
            play_conversation(renderer, reference, opening, replies, answers)
            for answers in itertools.islice(
                _answers(renderer, thought, replies), 1 if name == "many turns" else None
            )
        ]
        if name == "plain" and played[0].refusal:
            raise TemplateError(played[0].refusal)
        fault = next((one.fault for one in played if one.fault), "")
        detail = fault or played[0].refusal
        outcome = "different" if fault else "refused" if detail else "same"
        segments = played[0].segments
        results.append(ConversationResult(name=name, outcome=outcome, detail=detail, segments=segments))
    return RoundTrip(
        prefix_preserving=renderer.prefix_preserving,
        rewrites_history=any(
            renderer.rewrites_history(opening) for opening in ([user("u")], [system("s"), user("u")])
        ),
        conversations=tuple(results),
    )


def play_conversation(
    renderer: Renderer,
    reference: TemplateReference,
    opening: Sequence[Message],
    replies: Sequence[Sequence[Message]],
    answers: Sequence[Sequence[int]],
    *,
    reasoning: Reasoning = "keep",
) -> Played:
    """Play a conversation with the agent loop; compare each prompt with the template's text.

    Args:
        renderer: The model's renderer.
        reference: The reference for the same model.
        opening: The first messages.
        replies: The messages after each answer.
        answers: The ids that the policy samples, one list per turn.
        reasoning: Whether later prompts keep the reasoning.
    """
    plan = EpisodePlan(
        episode_id="e",
        seed=0,
        policy="p",
        limits=Limits(max_turns=len(replies) + 1),
        decoding=Decoding(max_turn_tokens=_NO_LIMIT),
        reasoning=reasoning,
    )
    loop, history = AgentLoop(renderer, plan), list(opening)
    request = loop.begin(list(opening))
    rendered: list[int] = []
    sampled: list[tuple[int, int, int]] = []
    ledger: list[int] = []
    segments = 1
    for number, (answer, reply) in enumerate(zip([*answers, ()], [*replies, ()], strict=True)):
        if request is None:
            return Played("", segments, loop.error)
        if request.prompt_ids[: len(ledger)] != ledger:
            segments += 1
            rendered, sampled = [*rendered, *(place for place, _, _ in sampled)], []
        try:
            fault = prompt_fault(reference, request.prompt_ids, history, rendered=rendered, sampled=sampled)
        except TemplateError as error:
            return Played("", segments, error.message)
        if fault:
            return Played(f"prompt {number + 1}, {fault}", segments)
        if not answer:
            break
        action = loop.receive(_completion(renderer, request, answer))
        ledger = [*request.prompt_ids, *answer]
        sampled.append((len(history), len(request.prompt_ids), len(ledger)))
        seen = without_reasoning(action, opened=renderer.opens_reasoning) if reasoning == "drop" else action
        history += [assistant(seen), *reply]
        request = loop.stepped(list(reply), 0.0, False, False)
    return Played("", segments)


def _completion(renderer: Renderer, request: SampleRequest, answer: Sequence[int]) -> Completion:
    return Completion(
        request_id=request.request_id,
        token_ids=list(answer),
        sampling_logprobs=[-1.0] * len(answer),
        finish_reason="stop" if answer[-1] in renderer.stop_ids else "length",
        policy_version=0,
    )


def _answers(
    renderer: Renderer, thought: str, replies: Sequence[Sequence[Message]]
) -> Iterator[list[list[int]]]:
    """Yield the answers of a conversation with each possible ending."""
    closed = []
    for number, reply in enumerate(replies):
        try:
            closed.append(renderer.encode_answer(f"{thought}b{number}", reply))
        except TemplateError:  # The template refuses this reply.
            closed.append(renderer.encode_answer(f"{thought}b{number}"))
    yield closed
    cut = [[token for token in answer if token not in renderer.stop_ids] for answer in closed]
    yield cut
    for stop in renderer.stop_ids:
        yield [[*answer, stop] for answer in cut]


def _conversations(
    specials: Sequence[str],
) -> Iterator[tuple[str, list[Message], list[list[Message]], str]]:
    """Yield (name, first messages, messages after each answer, beginning of each answer)."""
    tool: Message = {"role": "tool", "content": '{"result": 46}'}
    yield "plain", [user("What is 2+2?")], [[user("And 3+3?")], [user("Go on.")]], ""
    prompted = [system("Be brief."), user("You are X.\na1 b1\na2 b2")]
    yield "system prompt", prompted, [[user("a1 X\na2 b2")], [user("You win.")]], ""
    thought = "<think>\nLet me see.\n</think>\n\n"
    yield "reasoning", [user("12+34=")], [[user("Wrong.")], [user("56-7=")]], thought
    yield "white space", [user("  a\n\n")], [[user("\n b \t")], [user("c\n")]], ""
    yield "other scripts", [user("Grüße, 世界 👩🏽\u200d🚀")], [[user("مرحبا é e\u0301")], [user("2²")]], ""
    yield "long", [user("x = 1\n" * 200)], [[user("0123456789 " * 100)], [user("end")]], ""
    yield "many turns", [user("0")], [[user(str(turn))] for turn in range(TURNS_TRIED + 8)], ""
    yield "tool answers", [user("Use the tool.")], [[tool], [tool], [user("Thanks.")], [tool]], ""
    yield "two messages", [user("Play.")], [[user("You said b2."), user("Your turn.")], [user("End.")]], ""
    quoting = "".join(f" {text}\n" for text in specials[:_MOST_QUOTED])
    yield "quoted tokens", [user(f"a{quoting}")], [[user(f"b{quoting}c")], [user("d")]], ""
