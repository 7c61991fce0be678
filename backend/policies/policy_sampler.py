"""Samples published and stored policies of a pool for a job that runs in it."""

from __future__ import annotations

from collections.abc import Sequence

from backend.engines.protocol import SamplingEngine
from backend.policies.policy_directory import PolicyDirectory
from tinkergym.agent.sampler import Deliver
from tinkergym.errors import TinkerGymError
from tinkergym.schema.events import ErrorView
from tinkergym.schema.sampling import SampleFailure, SampleRequest


class PolicySampler:
    """Implements `tinkergym.agent.sampler.Sampler` for one tenant."""

    def __init__(self, engine: SamplingEngine, directory: PolicyDirectory, *, tenant_id: str) -> None:
        """Sample from `engine` what `directory` resolves."""
        self._engine, self._directory, self._tenant_id = engine, directory, tenant_id

    def submit(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Queue requests; each is answered exactly once through `deliver`."""
        answering = self._directory.answering(deliver)
        ready: list[SampleRequest] = []
        refused: list[SampleFailure] = []
        for request in requests:
            try:
                resolved = self._directory.resolve_for(answering, request, is_training=lambda: False)
            except TinkerGymError as error:
                view = ErrorView.model_validate(error.to_wire())
                refused.append(SampleFailure(request_id=request.request_id, error=view))
            else:
                ready.append(resolved.owned_by(self._tenant_id))
        if refused:
            answering(refused)
        if ready:
            self._engine.submit(ready, answering)

    def close(self) -> None:
        """The engine is its pool's."""
