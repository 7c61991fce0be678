"""AgentLoop: one agent through one episode, token for token, without input or output.

PENDING → GENERATING → INTERACTING → GENERATING → ... → TERMINATED. The caller passes requests to a sampler
and actions to an environment, and tells the loop the results. The loop knows neither of them, nor time. So
the same loop runs in the client, in the service's workers, around a user's own `reset`/`step` script, and in
tests.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from tinkergym.agent.deltas import Deltas
from tinkergym.agent.environment_values import read_step, valid_reward, variables_in
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.reasoning import without_reasoning
from tinkergym.agent.renderer import Renderer
from tinkergym.agent.tool_turns import ToolTurns, observed, offered_tools
from tinkergym.errors import (
    EpisodeProtocolError,
    InternalServiceError,
    InvalidImageError,
    InvalidRequestError,
    TemplateError,
    UnsupportedPartError,
)
from tinkergym.messages import (
    Message,
    assistant,
    messages_text,
    messages_to_answer,
    opening_messages,
)
from tinkergym.schema.sampling import Completion, SampleRequest
from tinkergym.trajectory.content_parts import Content, ImageSpan, content_text
from tinkergym.trajectory.ledger import Ledger, Span
from tinkergym.trajectory.trajectory import (
    StopReason,
    Trajectory,
    Turn,
)
from tinkergym.trajectory.turn_views import View, view_in

_CUT_OFF = frozenset(
    {
        StopReason.TRUNCATED,
        StopReason.TURN_LIMIT,
        StopReason.TOKEN_LIMIT,
        StopReason.CONTEXT_LIMIT,
        StopReason.EPISODE_TIMEOUT,
    }
)


class AgentState(StrEnum):
    """What the loop waits for."""

    PENDING = "pending"
    """The first observation."""
    GENERATING = "generating"
    """The policy's completion."""
    INTERACTING = "interacting"
    """The environment's response."""
    TERMINATED = "terminated"
    """Nothing; the trajectory is complete."""


class AgentLoop:
    """One agent's side of one episode.

    Example:
        >>> request = loop.begin(*env.reset(seed=plan.seed))
        >>> while request is not None:
        ...     action = loop.receive(sample(request))
        ...     request = loop.stepped(*env.step(action))
        >>> loop.trajectory()
    """

    def __init__(self, renderer: Renderer, plan: EpisodePlan) -> None:
        self._renderer, self._plan = renderer, plan
        self.state = AgentState.PENDING
        """What it waits for."""
        self._ledger = Ledger()
        self._turns: list[Turn] = []
        self._observation: Content = ""
        self._view: View | None = None
        """What the environment declared for people, with the observation."""
        self._tools: ToolTurns | None = None
        """The tool calls in the format of the model's own template; None without them."""
        self._deltas: Deltas | None = None
        """What follows each answer, from the first observation on."""
        self._delta: list[int] = []
        self._images: list[ImageSpan] = []
        """Where images are in the delta."""
        self._request: SampleRequest | None = None
        """The last request; the next one differs in few fields."""
        self._answer: tuple[Span, Completion, Content] | None = None
        """The last completion, until it is part of a turn."""
        self._variables: dict[str, Any] = {}
        self._terminated, self._truncated, self._early_reward = False, False, 0.0
        self.stop_reason: StopReason | None = None
        """Why the episode ended; None while it runs."""
        self.error = ""
        """The message or traceback behind the stop reason, if there is one."""

    def begin(
        self,
        observation: object,
        info: object = None,
        *,
        environment_prompt: str | None = None,
        reward: object = 0.0,
    ) -> SampleRequest | None:
        """Handle the return values of `env.reset`.

        Args:
            observation: Text, messages, or a mapping of them; see `observation_messages`.
            info: Its `template_variables` apply to the episode, except those that the job sets; the rest is
                ignored.
            environment_prompt: The environment's own system prompt, for a plan that has none.
            reward: What the agent earned before its first turn, in a game where others moved first.

        Returns:
            The request for the first completion, or None if the episode is already over.
        """
        self._expect(AgentState.PENDING, "begin")
        if not self._earned_early(reward):
            return None
        try:
            messages, tools = offered_tools(messages_to_answer(observation))
            # What the job sets comes last, and wins.
            variables = {**variables_in(info), **self._renderer.template_variables}
            self._view = view_in(info)
            self._renderer = self._renderer.with_tools(tools, variables)
            self._variables = variables
            if tools:
                self._tools = ToolTurns(self._renderer.call_grammar)
            opening = opening_messages(
                messages, job_prompt=self._plan.system_prompt, environment_prompt=environment_prompt
            )
            self._deltas = Deltas(self._renderer, self._ledger, opening)
            delta = self._renderer.start(opening)
        except (TypeError, ValueError, TemplateError, InvalidRequestError) as error:
            self.fail(StopReason.ENVIRONMENT_ERROR, f"reset: {error}")
            return None
        self._observation = messages_text(messages)
        return self._ask(delta, opening)

    def receive(self, completion: Completion) -> str:
        """Take the tokens sampled for the last request and return the action for `env.step`.

        Raises:
            InternalServiceError: The tokens are not a valid completion of that request; the episode ended
                with `sampling_failed`.
        """
        self._expect(AgentState.GENERATING, "receive")
        try:
            asked = "" if self._request is None else self._request.request_id
            if completion.request_id != asked:
                what = f"got a completion for {completion.request_id} instead of {asked}"
                raise ValueError(what)  # noqa: TRY301 - told like any other unusable answer
            self._ledger.append_given(self._delta, self._images)
            span = self._ledger.append_sampled(completion.token_ids, completion.sampling_logprobs)
        except ValueError as error:
            self.fail(StopReason.SAMPLING_FAILED, str(error))
            raise InternalServiceError(f"the sampler's completion is invalid: {error}") from error
        # The engine's text ends before a stop string.
        if (text := completion.text) is None:
            text = self._renderer.decode_answer(completion.token_ids)
        action = text if self._tools is None else self._tools.action(text)
        self._answer = span, completion, action
        self.state = AgentState.INTERACTING
        return content_text(action) if self._tools is None else self._tools.for_environment(action)

    def stepped(
        self, observation: object, reward: object, terminated: object, truncated: object, info: object = None
    ) -> SampleRequest | None:
        """Handle the return values of `env.step`.

        Returns:
            The request for the next completion, or None if the episode is over.
        """
        self._expect(AgentState.INTERACTING, "stepped")
        try:
            paid = valid_reward(reward)
        except ValueError as error:
            self.fail(StopReason.INVALID_REWARD, f"step returned the reward {error}")
            return None
        try:
            step = read_step(observation, terminated, truncated, info)
        except (TypeError, ValueError) as error:
            self.fail(StopReason.ENVIRONMENT_ERROR, f"step: {error}")
            return None
        messages, self._terminated, self._truncated = step.messages, step.terminated, step.truncated
        completion, action = self._record(paid, step.metrics)
        self._view = step.view
        if self._tools is None:
            self._observation = messages_text(messages)
        else:
            messages = self._tools.replies(messages)
            self._observation = observed(messages)
        if step.ended:
            self._end(StopReason.TERMINATED if self._terminated else StopReason.TRUNCATED)
            return None
        return self._next(messages, completion, content_text(action))

    def never_acted(self, reward: object, terminated: object, truncated: object) -> None:
        """End the episode of an agent that had no turn before the game was over."""
        self._expect(AgentState.PENDING, "never_acted")
        if self._earned_early(reward):
            self._terminated, self._truncated = bool(terminated), bool(truncated)
            self._end(StopReason.TERMINATED if self._terminated else StopReason.TRUNCATED)

    def cut_off(self, stop_reason: StopReason, reward: object, error: str = "") -> None:
        """End the episode because of another agent's limit. A second end is ignored.

        Args:
            stop_reason: The limit.
            reward: What this agent earned since its last action.
            error: A message that names the limit's agent.
        """
        if self.state is AgentState.TERMINATED:
            return
        if self._answer is None:
            if self.state is AgentState.PENDING and not self._earned_early(reward):
                return
        else:
            try:
                paid = valid_reward(reward)
            except ValueError as invalid:
                self.fail(StopReason.INVALID_REWARD, f"the game paid the reward {invalid}")
                return
            self._record(paid, {})
            self._observation, self._view = "", None
        self.error = error
        self._terminated = stop_reason is StopReason.TERMINATED
        self._end(stop_reason)

    def fail(self, stop_reason: StopReason, error: str = "", *, void: bool = False) -> None:
        """End the episode for an external reason. A second end is ignored.

        A completion without a reward yet gets a turn with the reward 0.

        Args:
            stop_reason: What happened.
            error: The message or traceback.
            void: Whether this completion had no effect because another agent failed.
        """
        if self.state is not AgentState.TERMINATED:
            self.error = error
            if self._answer is not None:
                self._record(0.0, {}, void=void)
                # The last completion is in its turn, and nothing was shown after it.
                self._observation, self._view = "", None
            self._end(stop_reason)

    def trajectory(self) -> Trajectory:
        """Return the record of the episode.

        Raises:
            EpisodeProtocolError: The episode is not over.
        """
        self._expect(AgentState.TERMINATED, "trajectory")
        assert self.stop_reason is not None
        # Built from checked parts; see Ledger.segments.
        return Trajectory.model_construct(
            agent=self._plan.agent,
            segments=self._ledger.segments(),
            turns=list(self._turns),
            terminated=self._terminated,
            truncated=self._truncated,
            stop_reason=self.stop_reason,
            error=self.error,
            seed=self._plan.seed,
            task_index=self._plan.task_index,
            retries=self._plan.attempt,
            early_reward=self._early_reward,
            template_variables=self._variables,
            final_observation=self._observation if self._turns else "",
            final_view=self._view if self._turns else None,
        )

    def _expect(self, state: AgentState, call: str) -> None:
        if self.state is not state:
            raise EpisodeProtocolError(
                f"{call}() was called while the episode is {self.state.value}",
                hint="the order is begin, then receive and stepped in turn until a call returns None",
            )

    def _next(self, messages: list[Message], completion: Completion, action: str) -> SampleRequest | None:
        if len(self._turns) >= self._plan.limits.max_turns:
            self._end(StopReason.TURN_LIMIT)
            return None
        seen, whole = _seen_later(action, self._plan, self._renderer)
        spoken = assistant(seen) if self._tools is None else self._tools.spoken(seen)
        assert self._deltas is not None, "it has begun"
        answer = completion.token_ids if whole else None
        try:
            delta, shown = self._deltas.after(answer, spoken, messages, turns=len(self._turns))
        except (TemplateError, UnsupportedPartError, InvalidImageError) as error:
            # The environment uses a message that this model's template or processor does not support.
            self.fail(StopReason.ENVIRONMENT_ERROR, f"step: {error}")
            return None
        return self._ask(delta, shown)

    def _ask(self, delta: list[int], shown: list[Message]) -> SampleRequest | None:
        # The delta enters the ledger together with the completion, so no record ends with unanswered text.
        self._delta, self._images = delta, self._renderer.spans(delta, shown)
        prompt_ids = self._ledger.context(delta)
        sampled = self._ledger.sampled_tokens
        room, limit, self.error = _room(self._plan, self._renderer, len(prompt_ids), sampled)
        if limit is not None:
            self._end(limit)
            return None
        turn = len(self._turns)
        self.state = AgentState.GENERATING
        decoding = self._plan.decoding
        before = self._request or self._plan.first_request(self._renderer.stop_ids)
        # A copy, because building a record of many fields takes four times as long; checked where it is read.
        self._request = before.model_copy(
            update={
                "request_id": self._plan.request_id(turn),
                "prompt_ids": prompt_ids,
                "max_tokens": min(decoding.max_turn_tokens, room),
                "seed": decoding.seed + turn,
                "images": self._ledger.context_images(self._images),
            }
        )
        return self._request

    def _earned_early(self, reward: object) -> bool:
        """Record what the agent earned before its first turn; return whether the reward is valid."""
        try:
            self._early_reward = valid_reward(reward)
        except ValueError as error:
            self.fail(StopReason.INVALID_REWARD, f"before its first turn the agent was paid {error}")
            return False
        return True

    def _record(
        self, reward: float, metrics: dict[str, float], *, void: bool = False
    ) -> tuple[Completion, Content]:
        """Add the turn of the pending completion; return the completion and its content."""
        assert self._answer is not None
        (span, completion, action), self._answer = self._answer, None
        self._turns.append(
            # pydantic's own constructor checks it, and takes half as long as `model_construct`.
            Turn(
                segment=span.segment,
                start=span.start,
                end=span.end,
                policy_version=completion.policy_version,
                finish_reason=completion.finish_reason,
                observation=self._observation,
                action=action,
                reward=reward,
                void=void,
                metrics=metrics,
                view=self._view,
            )
        )
        return completion, action

    def _end(self, stop_reason: StopReason) -> None:
        self.stop_reason = stop_reason
        self._truncated = self._truncated or stop_reason in _CUT_OFF
        self.state = AgentState.TERMINATED


def _room(
    plan: EpisodePlan, renderer: Renderer, prompt_tokens: int, sampled_tokens: int
) -> tuple[int, StopReason | None, str]:
    """Return how many tokens a completion may have; without room, the limit that ends the episode and why."""
    context, whose = renderer.context_length, "the model's context"
    most = plan.limits.max_context_tokens
    if most is not None and most < context:
        context, whose = most, "limits.max_context_tokens"
    room = context - prompt_tokens
    if room < 1:
        why = f"the next prompt has {prompt_tokens} tokens, {whose} {context}"
        return 0, StopReason.CONTEXT_LIMIT, why
    budget = plan.limits.max_episode_tokens
    if budget is not None:
        room = min(room, budget - sampled_tokens)
    return room, None if room >= 1 else StopReason.TOKEN_LIMIT, ""


def _seen_later(action: str, plan: EpisodePlan, renderer: Renderer) -> tuple[str, bool]:
    """Return what later turns see of an answer, and whether that is all of it."""
    if plan.reasoning != "drop":
        return action, True
    opened = renderer.opens_reasoning
    seen = without_reasoning(action, opened=opened)
    # If the prompt opened the reasoning, it exists even if the completion adds nothing to it.
    return seen, not opened and seen == action
