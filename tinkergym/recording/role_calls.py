"""RoleCalls: the calls of one role of a session, as prompts and as the record of its seat.

Without input or output, and without locks: the session has one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.growth import ASKED
from tinkergym.agent.reasoning import without_reasoning
from tinkergym.agent.renderer import TURNS_TRIED, Renderer
from tinkergym.agent.tool_turns import observed
from tinkergym.errors import ConflictError, InvalidRequestError
from tinkergym.messages import Message
from tinkergym.openai_api.chat_choices import said_in
from tinkergym.openai_api.chat_request import ChatRequest
from tinkergym.openai_api.completion_text import CallReader, Said
from tinkergym.openai_api.token_requests import Policy, Prompt, room_behind, token_requests
from tinkergym.recording.call_forest import Answer, CallForest, answer_keys, message_key
from tinkergym.recording.program_call import Call, Place
from tinkergym.schema.sampling import SampleRequest
from tinkergym.trajectory.content_parts import Content, TextPart, ToolCallPart
from tinkergym.trajectory.trajectory import StopReason, Trajectory


class RoleCalls:
    """One role of a session."""

    def __init__(self, plan: EpisodePlan, renderer: Renderer, *, in_training: bool) -> None:
        """Begin without calls; `in_training` says whether the job trains on any seat of the episode."""
        self.plan, self.renderer, self._in_training = plan, renderer, in_training
        self.forest = CallForest()
        self.calls = 0
        self.unfinished = 0
        """Answers that were being sampled when the program ended."""
        self._completions = self._sampled_tokens = self._rewritten = 0

    def begin(self, wanted: ChatRequest, messages: list[Message], body: bytes, *, strict: bool) -> Call:
        """Return a call with its prompt and its sampling requests; it counts from here on.

        Args:
            wanted: The call.
            messages: Its `messages`, as those of an episode.
            body: Identifies the call among repeats.
            strict: Whether a call that cannot be trained on is refused.

        Raises:
            InvalidRequestError: It cannot be answered, or not be trained on and is `strict`.
            ConflictError: The role is at a limit of the job.
            TemplateError: The template does not show the tools or a message.
        """
        longest = self._longest(wanted)
        untrained = self._untrained(wanted)
        if untrained and strict:
            raise InvalidRequestError(
                "a call with this setting cannot be trained on",
                hint="leave it out, or train without strict=True",
                field=untrained,
                code="not_trainable",
            )
        tools = wanted.shown_tools
        shown = self.renderer.with_tools(tools, wanted.variables)
        place = self._place(wanted, messages, shown)
        before = place.parent
        start = [] if before is None else before.token_ids
        prompt = Prompt(
            renderer=shown,
            token_ids=start + place.given_ids,
            images=([] if before is None else before.spans)
            + [image.moved(len(start)) for image in place.images],
            calls=CallReader(shown, tools, messages) if tools else None,
        )
        requests = self._requests(wanted, prompt, longest)
        call = Call(
            role=self.plan.agent,
            wanted=wanted,
            body=body,
            number=self.calls,
            first=self._completions,
            prompt=prompt,
            requests=requests,
            place=place,
            untrained=untrained,
        )
        self.calls += 1
        self._completions += len(requests)
        # Until it is sampled: calls at the same time share the limit.
        self._sampled_tokens += _most_tokens(call)
        return call

    def take(self, call: Call, *, move: int, seconds: float) -> None:
        """Record the completions of a call.

        Args:
            call: All of its completions are there.
            move: The number of its first answer; see `Answer`.
            seconds: See `Answer`.
        """
        self.give_back(call)
        place, opened = call.place, call.prompt.renderer.opens_reasoning
        for number, completion in enumerate(call.completions):
            said = said_in(call.prompt, completion)
            self._sampled_tokens += len(completion.token_ids)
            answer = Answer(
                number=call.first + number,
                move=move + number,
                call=call.number,
                shown_by=place.shown_by,
                parent=place.parent,
                asked=place.asked,
                said=answer_keys(_message(said), opened=opened),
                given_ids=place.given_ids,
                images=place.images,
                completion=completion,
                observation=observed(place.new),
                action=_action(said),
                opening=place.opening,
                replies=place.replies,
                depth=1 if place.parent is None else place.parent.depth + 1,
                seconds=seconds,
                untrained=call.untrained,
            )
            call.answers.append(answer)
            self.forest.add(answer)

    def give_back(self, call: Call) -> None:
        """Return the tokens that were reserved for a call."""
        self._sampled_tokens -= _most_tokens(call)

    def trajectory(self, reason: StopReason, error: str, reward: float) -> Trajectory:
        """Return the record of the role, whose last turn has the reward and counts the calls."""
        segments, turns = self.forest.record(reward)
        if turns:
            turns[-1] = turns[-1].model_copy(update={"metrics": self._counted()})
        # Built from checked parts; see Ledger.segments.
        return Trajectory.model_construct(
            agent=self.plan.agent,
            segments=segments,
            turns=turns,
            terminated=reason is StopReason.TERMINATED,
            truncated=False,
            stop_reason=reason,
            error=error,
            seed=self.plan.seed,
            task_index=self.plan.task_index,
            retries=self.plan.attempt,
            early_reward=0.0 if turns else reward,
            template_variables=dict(self.renderer.template_variables),
        )

    def reasons(self) -> Counter[str]:
        """Return how many answers are not trained on, by reason."""
        found = Counter(one.untrained for one in self.forest.answers if one.untrained)
        return found + Counter(unfinished=self.unfinished)

    # --- inside ---

    def _counted(self) -> dict[str, float]:
        reasons = self.reasons()
        numbers = {"calls": self.calls, "untrained_answers": reasons.total(), "rewritten": self._rewritten}
        return {name: float(n) for name, n in numbers.items()} | {
            f"untrained_answers/{name}": float(n) for name, n in sorted(reasons.items())
        }

    def _untrained(self, wanted: ChatRequest) -> str:
        """Return the field for which a call's tokens are not those of the policy in training."""
        if not self.plan.trained:
            return ""
        if "temperature" in wanted.model_fields_set and wanted.temperature != self.plan.decoding.temperature:
            return "temperature"
        return _cut_by(wanted)

    def _longest(self, wanted: ChatRequest) -> int:
        limits = self.plan.limits
        if self.calls >= limits.max_turns:
            raise _at_limit("max_turns", f"{limits.max_turns} calls")
        longest = min(
            wanted.longest or self.plan.decoding.max_turn_tokens, self.plan.decoding.max_turn_tokens
        )
        if limits.max_episode_tokens is None:
            return longest
        left = (limits.max_episode_tokens - self._sampled_tokens) // wanted.n
        if left < 1:
            raise _at_limit("max_episode_tokens", f"{limits.max_episode_tokens} sampled tokens")
        return min(longest, left)

    def _requests(self, wanted: ChatRequest, prompt: Prompt, longest: int) -> list[SampleRequest]:
        plan, most = self.plan, self.plan.limits.max_context_tokens
        longest = min(longest, room_behind(prompt, wanted))
        if most is not None:
            longest = min(longest, most - len(prompt.token_ids))
            if longest < 1:
                raise _at_limit("max_context_tokens", f"a prompt of {len(prompt.token_ids)} tokens")
        asked = token_requests(
            [prompt],
            wanted,
            Policy(name=plan.policy, version=plan.policy_version),
            longest=longest,
            top_logprobs=wanted.top_logprobs,
            structured=wanted.structured,
        )
        own: dict[str, Any] = {"session_id": plan.session_id, "stream": wanted.stream}
        if self._in_training and _cut_by(wanted):
            # As any client's: the service refuses them as parts of an episode that is trained on. An
            # evaluation keeps its version: the job may publish the next one while it is played.
            own |= {"session_id": "", "policy_version": None}
        if "temperature" not in wanted.model_fields_set:
            own["temperature"] = plan.decoding.temperature
        numbers = range(self._completions, self._completions + len(asked))
        return [
            one.model_copy(
                update={**own, "request_id": plan.request_id(number), "seed": plan.decoding.seed + number}
            )
            for number, one in zip(numbers, asked, strict=True)
        ]

    def _place(self, wanted: ChatRequest, messages: Sequence[Message], shown: Renderer) -> Place:
        """Attach a call, and render what is new."""
        keys = [message_key(message) for message in wanted.messages]
        shown_by = json.dumps([wanted.shown_tools, wanted.variables], sort_keys=True)
        parent, at = self.forest.deepest(keys, shown_by)
        given = None
        if parent is not None:
            given = self._delta(parent, messages, at, shown)
            if given is None:
                # What the model would see differs from what it saw and said: the call begins a conversation.
                self._rewritten += 1
                parent, at = None, 0
        if given is None:
            given = shown.start(self._as_seen(messages, shown))
        kind = tuple(message["role"] for message in messages[at:])
        return Place(
            parent=parent,
            shown_by=shown_by,
            asked=tuple(keys[at:]),
            given_ids=given,
            images=shown.spans(given, messages),
            new=messages[at:],
            opening=messages if parent is None else parent.opening,
            replies=frozenset([ASKED]) if parent is None else parent.replies | {kind},
        )

    def _delta(
        self, parent: Answer, messages: Sequence[Message], at: int, shown: Renderer
    ) -> list[int] | None:
        """Return the tokens behind an answer; None if the template writes what precedes them anew."""
        new = messages[at:]
        kinds = parent.replies | {tuple(message["role"] for message in new)}
        turns = TURNS_TRIED
        while turns <= parent.depth:
            turns *= 2
        if not self._drops_thoughts(parent, shown) and shown.grows(parent.opening, kinds, turns):
            delta = shown.delta(parent.completion.token_ids, new)
            if delta is not None:
                return delta
        whole, before = shown.start(self._as_seen(messages, shown)), parent.token_ids
        return whole[len(before) :] if whole[: len(before)] == before else None

    def _drops_thoughts(self, parent: Answer, shown: Renderer) -> bool:
        if self.plan.reasoning == "keep":
            return False
        text = shown.decode_answer(parent.completion.token_ids)
        return shown.opens_reasoning or without_reasoning(text) != text

    def _as_seen(self, messages: Sequence[Message], shown: Renderer) -> Sequence[Message]:
        """Return a conversation as the policy sees it: without earlier thoughts, if the job drops them."""
        if self.plan.reasoning == "keep":
            return messages
        return [
            {**one, "content": without_reasoning(content, opened=shown.opens_reasoning)}
            if one["role"] == "assistant" and isinstance(content := one["content"], str)
            else one
            for one in messages
        ]


def _most_tokens(call: Call) -> int:
    return sum(one.max_tokens for one in call.requests)


def _cut_by(wanted: ChatRequest) -> str:
    """Return the field that leaves a call only some of the policy's tokens to sample; empty for none."""
    if wanted.top_p < 1:
        return "top_p"
    if wanted.top_k > 0:
        return "top_k"
    return "response_format" if wanted.structured is not None else ""


def _at_limit(setting: str, what: str) -> ConflictError:
    return ConflictError(
        f"the session has reached limits.{setting}: {what}",
        hint="end the program, or raise the limit",
        field=f"limits.{setting}",
        code="session_limit",
    )


def _message(said: Said) -> dict[str, Any]:
    """Return an answer as the program gets it."""
    return {
        "role": "assistant",
        "content": said.content,
        "tool_calls": [call.model_dump() for call in said.calls],
    }


def _action(said: Said) -> Content:
    if not said.calls:
        return said.content or ""
    text = [TextPart(text=said.content)] if said.content else []
    calls = [
        ToolCallPart(id=call.id, name=call.function.name, arguments=call.function.arguments)
        for call in said.calls
    ]
    return [*text, *calls]
