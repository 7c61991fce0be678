"""Publishing: hand a version of a policy to the engine, and check that exactly its weights arrived.

The loop of the job decides when: `played_job` before it plays a step's episodes, `own_loop_job` when its user
asks for it.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backend.engines.protocol import SamplingEngine
from tinkergym.errors import ParityError

if TYPE_CHECKING:  # torch
    from backend.compute.weights import PolicyWeights


@dataclass(frozen=True, slots=True)
class TakenWeights:
    """The policy's weights at one moment."""

    weights: PolicyWeights
    hashed: Future[str]

    @property
    def sha256(self) -> str:
        """Their hash; waits for it."""
        return self.hashed.result()


def publish(
    engine: SamplingEngine, policy_id: str, version: int, taken: TakenWeights, *, let_finish: bool
) -> None:
    """Publish a version to the engine, and check that it arrived.

    Args:
        engine: The engine.
        policy_id: The policy's id.
        version: The version's number.
        taken: The version's weights.
        let_finish: See `SamplingEngine.publish`.

    Raises:
        ParityError: Other weights arrived.
    """
    arrived = engine.publish(policy_id, version, taken.weights, let_finish=let_finish)
    sha256, loaded = taken.sha256, engine.loaded().get(policy_id)
    if loaded != version or arrived != sha256:
        raise ParityError(
            f"version {version} of the policy was published with hash {sha256[:12]}, but the engine "
            f"holds version {loaded} and was given {arrived[:12]}",
            hint="report this with the job's log",
        )
