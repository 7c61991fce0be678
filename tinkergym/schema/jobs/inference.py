"""Batch inference: completions of a dataset's rows, without training."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

from pydantic import Field

from tinkergym.schema.decoding import Decoding
from tinkergym.schema.ids import POLICY_REF
from tinkergym.schema.jobs.rules.rule_table import RuleTable, idle
from tinkergym.schema.jobs.training_spec import TrainingSpec
from tinkergym.schema.uploaded_data import Sha256
from tinkergym.trajectory.trajectory import TokenId

_OF_TRAINING = ("adapter", "initial_policy", "optimizer", "sampling", "checkpoint_every", "keep_checkpoints")


_MOST_COMPLETIONS = 16_384
"""Of a step: all are in memory until it is recorded."""


class InferenceSpec(TrainingSpec):
    """Sample completions of a dataset's rows, part by part; a step is a part of the rows."""

    rules = (RuleTable(tuple(idle(name, lambda _: True, "a job that trains") for name in _OF_TRAINING)),)
    samples_only: ClassVar[bool] = True
    kind: Literal["inference"] = "inference"
    policy: str = Field("", pattern=rf"^({POLICY_REF})?$", max_length=200)
    """The trained policy that is sampled, such as `job-...@40`; without a version the newest, and the service
    records which that was. Empty is the model itself."""
    data: Sha256
    """The name of an uploaded dataset of prompts."""
    decoding: Decoding = Decoding()
    """How completions are drawn; its seed, the row's number and the sample's give each its own seed."""
    n: int = Field(1, ge=1, le=1024)
    """Completions per row."""
    logprobs: bool = False
    """Whether the results have the logprobs of the sampled tokens."""
    stop_ids: list[TokenId] = Field([], max_length=1024)
    """Token ids at which a completion ends; the client's renderer has them."""
    rows_per_step: int = Field(256, ge=1, le=100_000)
    """Rows per step. What is done is kept after each. Fewer if those have more than 16,384 completions."""
    steps: int = Field(1, ge=1, le=10**9)
    """Steps; recorded by the service."""

    @property
    def row_decoding(self) -> Decoding:
        """As `decoding`."""
        return self.decoding

    @property
    def trained_agents(self) -> tuple[str, ...]:
        """None: it trains no policy."""
        return ()

    @property
    def played(self) -> None:
        """None: it plays no episodes."""

    @property
    def datasets(self) -> dict[str, str]:
        """The uploaded dataset that it uses."""
        return {"data": self.data}

    @property
    def records_per_step(self) -> int:
        """As `rows_per_step`."""
        return self.rows_per_step

    @property
    def sampled_policy(self) -> str:
        """As `policy`."""
        return self.policy

    @property
    def completions_per_record(self) -> int:
        """As `n`."""
        return self.n

    def with_records(self, records: int) -> Self:
        """Return the job with its steps."""
        rows = max(1, min(self.rows_per_step, _MOST_COMPLETIONS // self.n))
        return self.model_copy(update={"rows_per_step": rows, "steps": math.ceil(records / rows)})

    @property
    def step_work(self) -> tuple[object, ...]:
        """Also how much is sampled."""
        return *super().step_work, self.rows_per_step, self.n, self.decoding.max_turn_tokens

    def references(self) -> dict[str, str]:
        """Return the policy that it samples, by setting."""
        return {"policy": self.policy} if self.policy else {}
