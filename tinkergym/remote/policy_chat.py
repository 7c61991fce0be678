"""One conversation with a policy: what it was shown and what it sampled, token for token.

It is kept by the same `AgentLoop` as in training.
"""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
import weakref
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from tinkergym.agent.agent_loop import AgentLoop
from tinkergym.agent.environment_values import variables_in
from tinkergym.agent.episode_plan import EpisodePlan, PlayedPolicy
from tinkergym.agent.renderer import Renderer
from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.errors import EpisodeProtocolError, InvalidRequestError, PromptTooLongError
from tinkergym.messages import Observation
from tinkergym.remote.ask import ask
from tinkergym.remote.transport import Connection
from tinkergym.rollout.table_tools import SeatToolbox
from tinkergym.schema.chat_templates import variables_fault
from tinkergym.schema.sampling import SampleRequest
from tinkergym.schema.seat_tools import SeatTools
from tinkergym.trajectory.trajectory import StopReason

_MOST_ASKED = 100_000
"""Prompts whose number of calls a policy remembers."""


class ChattingPolicy(PlayedPolicy, Protocol):
    """A `Policy`, as its conversations need it."""

    tools: SeatTools | None
    environment_prompt: str | None
    environment_variables: dict[str, Any]
    seeds: PromptSeeds

    @property
    def connection(self) -> Connection:
        """To the service that samples."""
        ...

    @property
    def renderer(self) -> Renderer:
        """Of its model."""
        ...


class PolicyChat:
    """Acts on the observations of one episode after another; the model sees the whole episode so far.

        chat = policy.chat()
        observation, info = env.reset()
        over = False
        while not over:
            observation, reward, terminated, truncated, info = env.step(chat.act(observation))
            over = terminated or truncated

    `reset` begins the next episode. A policy may hold any number of conversations at a time, in any threads;
    one conversation belongs to one thread.
    """

    def __init__(self, policy: ChattingPolicy, *, seed: int | None = None) -> None:
        """Start empty. Users call `Policy.chat`."""
        self.policy = policy
        self._own_toolbox: SeatToolbox | None = None
        self._loop: AgentLoop | None = None
        self._pending: SampleRequest | None = None
        self._episode_seed = seed
        self._sampling_seed = 0
        """Turn k of the episode samples with this plus k."""
        self.last_version: int | None = None
        """The version that sampled the last action."""

    def reset(self, seed: int | None = None) -> None:
        """Begin a new episode: the next observation is its first.

        Args:
            seed: Seed of this episode's actions, as for `Policy.chat`.
        """
        self._loop = self._pending = None
        self._episode_seed = seed

    def act(
        self,
        observation: Observation,
        info: Mapping[str, Any] | None = None,
        *,
        template_variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Act on an observation: the first of an episode, or the response to the last action.

        Args:
            observation: As for `Policy.act`.
            info: What `reset` returned with the first observation, as for `Policy.act`.
            template_variables: As for `Policy.act`, with the first observation of an episode only.

        Returns:
            The action for `env.step`.

        Raises:
            PromptTooLongError: The first observation leaves no room for a completion in the model's context.
            EpisodeProtocolError: The conversation has reached a limit; see `reset`.
            ServiceUnavailableError: Sampling failed; calling again with the same observation is safe.
            InvalidToolError: A tool that it was trained with is not installed here.
            TemplateError: The chat template does not use one of `template_variables`.
            InvalidRequestError: `template_variables` are given within an episode.
        """
        if template_variables and self._loop is not None:
            raise InvalidRequestError(
                "can only be given with the first observation of an episode",
                hint="leave them out, or call reset() first",
                field="template_variables",
            )
        if self._pending is None:  # Otherwise the last attempt to sample failed, and this is a retry.
            self._pending = self._hear(observation, info, template_variables)
        while True:
            completion = ask(self.policy.connection, self._pending)
            self._pending = None
            self.last_version = completion.policy_version
            assert self._loop is not None
            action = self._loop.receive(completion)
            tools = self.policy.tools
            called = None if tools is None else self._toolbox(tools).called(self.policy.name, action)
            if called is None:
                return action
            self._pending = self._hear(called.observation)

    def close(self) -> None:
        """Close the tools that it called. Without tools, or at the program's end, that is not needed."""
        if self._own_toolbox is not None:
            self._own_toolbox.close()
            self._own_toolbox = None

    def _hear(
        self,
        observation: Observation,
        info: Mapping[str, Any] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> SampleRequest:
        first = self._loop is None
        if self._loop is None:
            request = self._begin(observation, info, variables)
            if request is not None:
                self._sampling_seed = self.policy.seeds.draw(
                    request, self.policy.decoding.seed, self._episode_seed
                )
        else:
            request = self._loop.stepped(observation, 0.0, False, False)
        if request is not None:
            return request.model_copy(update={"seed": self._sampling_seed + request.seed})
        assert self._loop is not None
        reason, error = self._loop.stop_reason, self._loop.trajectory().error
        self.reset()
        if reason is StopReason.ENVIRONMENT_ERROR:
            raise EpisodeProtocolError(f"act() cannot read the observation: {error}", field="observation")
        if first:
            raise PromptTooLongError(f"the first observation is too long: {error}", field="observation")
        raise EpisodeProtocolError(
            f"the conversation has reached its {reason}{f': {error}' if error else ''}",
            hint="if a new episode has begun, call reset() before its first act()",
            code="conversation_full",
        )

    def _begin(
        self, observation: Observation, info: Mapping[str, Any] | None, variables: Mapping[str, Any] | None
    ) -> SampleRequest | None:
        policy = self.policy
        prompt = policy.environment_prompt
        if policy.tools is not None:
            toolbox = self._toolbox(policy.tools)
            toolbox.begin()
            prompt = toolbox.prompt(prompt)
        if variables and (fault := variables_fault(variables)):
            raise fault.error()
        # Its requests count the turns from 0.
        decoding = policy.decoding.model_copy(update={"seed": 0})
        plan = EpisodePlan.for_policy(policy, decoding, episode_id=f"act-{uuid.uuid4().hex[:16]}", seed=0)
        self._loop = AgentLoop(policy.renderer.with_tools((), variables), plan)
        shown = {**policy.environment_variables, **variables_in(info)}
        return self._loop.begin(observation, {"template_variables": shown}, environment_prompt=prompt)

    def _toolbox(self, settings: SeatTools) -> SeatToolbox:
        if self._own_toolbox is None:
            self._own_toolbox = SeatToolbox(settings)
            weakref.finalize(self, self._own_toolbox.close)
        return self._own_toolbox


class PromptSeeds:
    """Seeds of conversations by their first prompt: asked again, it gets another one. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: BoundedDict[bytes, int] = BoundedDict(_MOST_ASKED)
        """How often each prompt was asked."""

    def draw(self, first: SampleRequest, own: int, seed: int | None) -> int:
        """Return the seed of a conversation's first turn.

        Args:
            first: Its first request. Without a seed, different prompts sample independently, in any order.
            own: The policy's seed.
            seed: As for `Policy.chat`.
        """
        if seed is not None:
            entropy = [own, seed, 1]  # The 1 separates given seeds from others.
        else:
            prompt = [first.prompt_ids, [span.sha256 for span in first.images]]
            digest = hashlib.blake2b(json.dumps(prompt).encode(), digest_size=16).digest()
            with self._lock:
                before = self._asked.get(digest, 0)
                self._asked[digest] = before + 1
            entropy = [own, int.from_bytes(digest), before]
        drawn = int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0])
        return drawn >> 1  # Room for later turns.
