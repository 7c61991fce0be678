"""The policies of a job, treated as one: all have the same step, and version n of each is made by step n."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from pydantic import JsonValue

from backend.episodes.played import Played, trained_seats
from backend.jobs.learn_phase import Learned
from backend.policies.parity import Prompt, prompt_of
from backend.policies.publishing import TakenWeights
from backend.policies.trained_policy import TrainedPolicy
from backend.store.stored_facts import Fact
from tinkergym.schema.ids import AgentMetric, policy_of

Taken = Mapping[str, TakenWeights]
"""By agent; the agent of a single policy is empty."""


class AllPolicies:
    """The operations of an RL loop on all its policies at once.

    With one policy they are that policy's own.
    """

    def __init__(self, policies: Mapping[str, TrainedPolicy]) -> None:
        """Take the job's policies, by agent."""
        self._policies = policies

    def take_weights(self) -> Taken:
        """Copy the current weights, and start hashing them."""
        return {agent: policy.take_weights() for agent, policy in self._policies.items()}

    def publish(self, version: int, taken: Taken, *, let_finish: bool = False) -> None:
        """Publish a version of each to the engine.

        Raises:
            ParityError: Other weights arrived.
        """
        for agent, policy in self._policies.items():
            policy.publish(version, taken[agent], let_finish=let_finish)

    def differ_from_recorded(self, version: int, taken: Taken) -> bool:
        """Whether an earlier attempt recorded different weights for a version of any of them."""
        for agent, policy in self._policies.items():
            known = policy.recorded_sha256(version)
            if known is not None and known != taken[agent].sha256:
                return True
        return False

    @property
    def notes(self) -> Mapping[str, JsonValue]:
        """The loop's own state in the checkpoint that the job resumes from; all policies have the same."""
        return next(iter(self._policies.values())).notes

    def note(self, notes: Mapping[str, JsonValue]) -> None:
        """Write this into the checkpoints of all policies from now on."""
        for policy in self._policies.values():
            policy.note(notes)

    def keep_steps(self, steps: Collection[int], *, why: str) -> None:
        """Keep the checkpoints of these steps of all policies; see `TrainedPolicy.keep_steps`."""
        for policy in self._policies.values():
            policy.keep_steps(steps, why=why)

    def take_facts(self) -> list[Fact]:
        """Return the facts recorded about the policies since the last call."""
        return [fact for policy in self._policies.values() for fact in policy.take_facts()]

    def step_finished(self) -> None:
        """Record that a step is done."""
        for policy in self._policies.values():
            policy.step_finished()

    def expect_requests_for(self, version: int) -> None:
        """From now on hold requests for a version that is not published yet."""
        for policy in self._policies.values():
            policy.expect_requests_for(version)

    def answer_kept_requests(self) -> None:
        """Pass held requests to the engine: the version is published."""
        for policy in self._policies.values():
            policy.answer_kept_requests()

    def refuse_kept_requests(self) -> None:
        """Answer held requests with an error: the version will not be published."""
        for policy in self._policies.values():
            policy.refuse_kept_requests()

    def probed_parity(
        self,
        version: int,
        prompts: Mapping[str, Sequence[Prompt]],
        *,
        temperature: float,
        allowed: float,
    ) -> None:
        """Compare learner and engine, for each policy by a few tokens sampled after its own prompts.

        Raises:
            ParityError: They differ by more than `allowed`, in nats.
        """
        for agent, policy in self._policies.items():
            policy.probed_parity(version, prompts.get(agent, []), temperature=temperature, allowed=allowed)


def together(learned: Mapping[str, Learned]) -> Learned:
    """Combine the update results of several policies, without averaging over them.

    Args:
        learned: By agent. The result of a single policy, whose agent is empty, is returned unchanged.
    """
    if "" in learned:
        return learned[""]
    metrics: dict[str, float] = {}
    for agent, one in learned.items():
        losses = {} if one.loss is None else {"loss": one.loss}
        of_one = {**losses, **one.metrics, "trained_tokens": float(one.trained_tokens)}
        metrics |= {str(AgentMetric("policy", agent, name)): value for name, value in of_one.items()}
    tokens = sum(one.trained_tokens for one in learned.values())
    return Learned(loss=None, metrics=metrics, trained_tokens=tokens)


def sha256_of(taken: Taken) -> dict[str, str]:
    """Return the hashes of weights, by agent; waits for them."""
    return {agent: one.sha256 for agent, one in taken.items()}


def prompts_of(job_id: str, played: Played, agents: Iterable[str]) -> dict[str, list[Prompt]]:
    """Return the prompts of the first turns in a step's episodes, by agent."""
    return {
        agent: [
            prompt_of(segment.token_ids, segment.loss_mask, segment.images)
            for seat in trained_seats(played, policy_of(job_id, agent))
            for segment in seat.trajectory.segments
            if any(segment.loss_mask)
        ]
        for agent in agents
    }
