"""A policy as a strategy: the exact probability of each legal action, from the logprobs of its tokens.

Nothing is sampled. For each legal action the tokens of its usual spelling, including the stop token, are
scored after the conversation so far.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinkergym.agent.agent_loop import AgentLoop
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import TinkerGymError, from_wire
from tinkergym.evaluation.evaluate import EvaluablePolicy
from tinkergym.rollout.table_tools import with_offer
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest
from tinkergym_tabletop.exploitability import Situation


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStrategy:
    """A policy's action probabilities in the given situations. Call it as a strategy."""

    odds: Mapping[Situation, Mapping[str, float]]
    """Probabilities of the legal actions; they sum to 1."""
    legal_share: Mapping[Situation, float]
    """The total probability of the usual spellings of legal actions, before normalization."""

    @property
    def mean_legal_share(self) -> float:
        """The mean of `legal_share`.

        If it is far below 1, the exploitability says little about the policy.
        """
        return math.fsum(self.legal_share.values()) / len(self.legal_share)

    def __call__(self, situation: Situation) -> Mapping[str, float]:
        """Return the probability of each legal action."""
        return self.odds[situation]


def policy_strategy(
    policies: EvaluablePolicy | Mapping[str, EvaluablePolicy],
    situations: Iterable[Situation],
    *,
    environment_prompt: str | None = None,
) -> PolicyStrategy:
    """Compute action probabilities of policies at temperature 1.

    Args:
        policies: One policy for all seats, or one for each agent.
        situations: From `GameTree.situations`.
        environment_prompt: The game's own system prompt, if it has one.

    Raises:
        TinkerGymError: The service refused a request.
    """
    asked = list(situations)
    scores: dict[tuple[int, str], float] = {}
    per_agent: dict[str, list[int]] = {}
    for number, one in enumerate(asked):
        per_agent.setdefault(one.agent, []).append(number)
    for agent, numbers in per_agent.items():
        policy = policies[agent] if isinstance(policies, Mapping) else policies
        own = {number: asked[number] for number in numbers}
        scores |= _logprobs(policy, own, environment_prompt)
    odds: dict[Situation, dict[str, float]] = {}
    share: dict[Situation, float] = {}
    for number, one in enumerate(asked):
        logprobs = [scores[number, action] for action in one.legal]
        top = max(logprobs)
        weights = [math.exp(value - top) for value in logprobs]
        total = math.fsum(weights)
        odds[one] = {action: weight / total for action, weight in zip(one.legal, weights, strict=True)}
        share[one] = math.exp(top) * total
    return PolicyStrategy(odds=odds, legal_share=share)


def greedy_choice(
    policies: EvaluablePolicy | Mapping[str, EvaluablePolicy], *, environment_prompt: str | None = None
) -> Callable[[Sequence[Situation]], dict[Situation, str]]:
    """Return a function for `greedy_exploitability` that finds the legal action policies find most probable.

    Args:
        policies: As for `policy_strategy`.
        environment_prompt: As for `policy_strategy`.
    """

    def choose(situations: Sequence[Situation]) -> dict[Situation, str]:
        strategy = policy_strategy(policies, situations, environment_prompt=environment_prompt)
        return {one: max(one.legal, key=lambda action: strategy(one)[action]) for one in situations}

    return choose


def _logprobs(
    policy: EvaluablePolicy, situations: Mapping[int, Situation], environment_prompt: str | None
) -> dict[tuple[int, str], float]:
    renderer = policy.renderer
    environment_prompt = with_offer(environment_prompt, policy.tools)
    requests: list[SampleRequest] = []
    lengths: dict[str, tuple[int, str, int]] = {}
    for number, situation in situations.items():
        prompt = _prompt(policy, renderer, situation, environment_prompt)
        for place, action in enumerate(situation.legal):
            ids = renderer.encode_answer(action)
            request_id = f"score-{number}-{place}"
            lengths[request_id] = (number, action, len(ids))
            requests.append(
                SampleRequest(
                    request_id=request_id,
                    policy=policy.name,
                    policy_version=policy.version,
                    prompt_ids=[*prompt, *ids],
                    max_tokens=1,
                    prompt_logprobs=True,
                )
            )
    found: dict[tuple[int, str], float] = {}
    for completion in _asked(policy, requests):
        number, action, length = lengths[completion.request_id]
        assert completion.prompt_logprobs is not None
        own = completion.prompt_logprobs[-length:]
        found[number, action] = math.fsum(value for value in own if value is not None)
    return found


def _prompt(
    policy: EvaluablePolicy, renderer: Renderer, situation: Situation, environment_prompt: str | None
) -> list[int]:
    """Return the token ids before the next completion, as the agent loop would have them."""
    plan = EpisodePlan.for_policy(policy, policy.decoding, episode_id="score", seed=0)
    loop = AgentLoop(renderer, plan)
    request = loop.begin(situation.observations[0], environment_prompt=environment_prompt)
    for action, observation in zip(situation.actions, situation.observations[1:], strict=True):
        if request is None:
            break
        ids = renderer.encode_answer(action)
        loop.receive(
            Completion(
                request_id=request.request_id,
                token_ids=ids,
                sampling_logprobs=[0.0] * len(ids),
                finish_reason="stop",
                policy_version=0,
            )
        )
        request = loop.stepped(observation, 0.0, False, False)
    if request is None:
        raise TinkerGymError(f"the game cannot be rendered for the policy: {loop.stop_reason}: {loop.error}")
    return request.prompt_ids


def _asked(policy: EvaluablePolicy, requests: Sequence[SampleRequest]) -> list[Completion]:
    answers: list[Any] = []
    done = threading.Event()

    def deliver(batch: Sequence[Completion | SampleFailure]) -> None:
        answers.extend(batch)
        if len(answers) == len(requests):
            done.set()

    sampler = policy.sampler()
    try:
        sampler.submit(requests, deliver)
        done.wait()
    finally:
        sampler.close()
    for answer in answers:
        if isinstance(answer, SampleFailure):
            raise from_wire(answer.error.model_dump())
    return answers
