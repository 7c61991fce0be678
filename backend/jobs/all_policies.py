"""The policies of a job, treated as one: all have the same step, and version n of each comes after step n."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pydantic import JsonValue

from backend.jobs.learn_phase import Learned
from backend.learner.sequences import TokenLimits
from backend.policies.parity import Prompt
from backend.policies.trained_policy import TakenWeights, TrainedPolicy
from backend.store.facts import Fact

Taken = Mapping[str, TakenWeights]
"""By agent; the agent of a single policy is empty."""


class AllPolicies:
    """What an RL loop does to all of its policies at once. With one policy it is that policy's own."""

    def __init__(self, policies: Mapping[str, TrainedPolicy]) -> None:
        """Take the job's policies, by agent."""
        self._policies = policies

    @property
    def limits(self) -> TokenLimits:
        """What the models can compute on which they rest; of several models, what any of them can."""
        known = [policy.limits for policy in self._policies.values()]
        lengths = [one.context_length for one in known if one.context_length is not None]
        return TokenLimits(
            vocabulary=max(one.vocabulary for one in known),
            context_length=max(lengths) if len(lengths) == len(known) else None,
            images=next((one.images for one in known if one.images is not None), None),
        )

    def take_weights(self) -> Taken:
        """Copy the present weights, and begin to hash them."""
        return {agent: policy.take_weights() for agent, policy in self._policies.items()}

    def publish(self, version: int, taken: Taken, *, let_finish: bool = False) -> None:
        """Give the engine a version of each.

        Raises:
            ParityError: Other weights arrived.
        """
        for agent, policy in self._policies.items():
            policy.publish(version, taken[agent], let_finish=let_finish)

    def differ_from_recorded(self, version: int, taken: Taken) -> bool:
        """Whether an earlier attempt recorded other weights for a version of any of them."""
        for agent, policy in self._policies.items():
            known = policy.recorded_sha256(version)
            if known is not None and known != taken[agent].sha256:
                return True
        return False

    @property
    def notes(self) -> Mapping[str, JsonValue]:
        """What the checkpoint that the job goes on from holds of the loop's own; all have the same."""
        return next(iter(self._policies.values())).notes

    def note(self, notes: Mapping[str, JsonValue]) -> None:
        """Write this into the checkpoints of all from now on."""
        for policy in self._policies.values():
            policy.note(notes)

    def keep_steps(self, steps: Collection[int], *, why: str) -> None:
        """Keep the checkpoints of these steps of all; see `TrainedPolicy.keep_steps`."""
        for policy in self._policies.values():
            policy.keep_steps(steps, why=why)

    def take_facts(self) -> list[Fact]:
        """Return what was seen of the policies since the last call."""
        return [fact for policy in self._policies.values() for fact in policy.witness.take()]

    def step_finished(self) -> None:
        """Note that a step is done."""
        for policy in self._policies.values():
            policy.step_finished()

    def expect_requests_for(self, version: int) -> None:
        """From now on keep requests for a version that is not out yet."""
        for policy in self._policies.values():
            policy.expect_requests_for(version)

    def answer_kept_requests(self) -> None:
        """Hand what was kept to the engine: the version is out."""
        for policy in self._policies.values():
            policy.answer_kept_requests()

    def refuse_kept_requests(self) -> None:
        """Answer what was kept with an error: the version will not come."""
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
        """Compare learner and engine, for each policy by a few tokens after prompts of its own.

        Raises:
            ParityError: They differ by more than `allowed`, in nats.
        """
        for agent, policy in self._policies.items():
            policy.probed_parity(version, prompts.get(agent, []), temperature=temperature, allowed=allowed)


def together(learned: Mapping[str, Learned]) -> Learned:
    """Return what the updates of several policies did; nothing is averaged over them.

    Args:
        learned: By agent. Of a single policy, whose agent is empty, it is returned as it is.
    """
    if "" in learned:
        return learned[""]
    metrics: dict[str, float] = {}
    for agent, one in learned.items():
        losses = {} if one.loss is None else {"loss": one.loss}
        of_one = {**losses, **one.metrics, "trained_tokens": float(one.trained_tokens)}
        metrics |= {f"policy/{agent}/{name}": value for name, value in of_one.items()}
    tokens = sum(one.trained_tokens for one in learned.values())
    return Learned(loss=None, metrics=metrics, trained_tokens=tokens)


def sha256_of(taken: Taken) -> dict[str, str]:
    """Return the hashes of weights, by agent; waits for them."""
    return {agent: one.sha256 for agent, one in taken.items()}
