"""What is sampled for which row: pure functions, so client, job and any resumption agree.

A unit is one completion: `n` units per row, numbered in the order of the dataset.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from tinkergym.errors import PromptTooLongError
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.sampling import SampleRequest
from tinkergym.trajectory.content_parts import ImageSpan


def seed_of(base: int, row: int, sample: int) -> int:
    """Return the seed of a row's completion number `sample`; it depends on nothing else."""
    digest = hashlib.sha256(f"{base}/{row}/{sample}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPlan:
    """How rows are sampled."""

    run_id: str
    """Makes the ids of its requests unique."""
    policy: str
    policy_version: int | None
    decoding: Decoding
    n: int
    """Completions of each row."""
    stop_ids: Sequence[int]
    context_length: int

    def requests(
        self, row: int, token_ids: Sequence[int], images: Sequence[ImageSpan] = (), *, first: int = 0
    ) -> list[SampleRequest]:
        """Return the requests of a row's completions, from number `first` on.

        Raises:
            PromptTooLongError: The prompt leaves no room for a completion.
        """
        room = self.context_length - len(token_ids)
        if room < 1:
            raise PromptTooLongError(
                f"the prompt has {len(token_ids)} tokens, but the model's context is {self.context_length}",
                field="prompt",
            )
        drawn = self.decoding.model_dump(exclude={"seed", "max_turn_tokens"})
        return [
            SampleRequest(
                request_id=f"{self.run_id}-{row}-{sample}",
                policy=self.policy,
                policy_version=self.policy_version,
                prompt_ids=list(token_ids),
                images=list(images),
                max_tokens=min(self.decoding.max_turn_tokens, room),
                seed=seed_of(self.decoding.seed, row, sample),
                stop_ids=list(self.stop_ids),
                **drawn,
            )
            for sample in range(first, self.n)
        ]
