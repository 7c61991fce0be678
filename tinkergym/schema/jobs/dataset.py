"""Jobs that train on a dataset: supervised fine-tuning and preferences."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tinkergym.schema.jobs.evaluated_spec import EvaluatedSpec
from tinkergym.schema.jobs.rules.evaluation_rules import EVALUATED
from tinkergym.schema.jobs.rules.policy_rules import DATASET
from tinkergym.schema.optimizer import Optimized
from tinkergym.schema.preference_losses import DPO, PreferenceLoss
from tinkergym.schema.refusals import Refusal
from tinkergym.schema.uploaded_data import Sha256


class DatasetSpec(EvaluatedSpec, Optimized):
    """Settings of jobs that train on a dataset, in an order shuffled by `seed`.

    `sampling` applies when the policy is used; training does not sample.
    """

    rules = (EVALUATED, DATASET)
    data: Sha256
    """The name of an uploaded dataset."""
    eval_data: Sha256 | None = None
    """Another dataset, used for evaluation and not for training."""
    held_out: float = Field(0.0, ge=0, lt=1)
    """Fraction of `data`, drawn by `seed`, that is used for evaluation and not for training, in place of
    `eval_data`."""
    eval_every: int = Field(10, ge=1)
    """Steps between evaluations; the first and the last step always evaluate."""
    batch_size: int = Field(32, ge=1)
    """Records per train step."""
    shuffle: bool = True
    """A new order in every pass over the data; False keeps the order of the file."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "linear"
    """Decaying from `learning_rate` at the first step towards 0 at the last, or constant."""

    @property
    def played(self) -> None:
        """None: it learns from its dataset."""

    @property
    def datasets(self) -> dict[str, str]:
        """The uploaded datasets that it uses, by setting."""
        return {"data": self.data} | ({} if self.eval_data is None else {"eval_data": self.eval_data})

    @property
    def records_per_step(self) -> int:
        """As `batch_size`."""
        return self.batch_size

    @property
    def step_work(self) -> tuple[object, ...]:
        """Also how many records of which dataset."""
        return *super().step_work, self.batch_size, self.data

    def held_out_records(self, records: int) -> int:
        """Return how many of `records` are held out for evaluation."""
        return max(1, round(self.held_out * records)) if self.held_out else 0

    def left_of(self, records: int) -> int | Refusal:
        """Return how many of `records` are trained on, which must not be none."""
        few = f"{records} {'record' if records == 1 else 'records'}"
        return records - self.held_out_records(records) or Refusal(
            "held_out",
            f"{self.held_out:g} of {few} would leave none to train on",
            "lower it, or use eval_data",
            "nothing_left",
        )


class SFTSpec(DatasetSpec):
    """Supervised fine-tuning: raise the likelihood of the dataset's completions."""

    kind: Literal["sft"] = "sft"
    aggregation: Literal["token", "sequence"] = "token"
    """Mean over all trained tokens of the step, or over records of their token means."""


class PreferenceSpec(DatasetSpec):
    """Preference training: raise the chosen completion over the rejected one.

    For losses with a reference, it is the policy that the job starts from.
    """

    kind: Literal["preference"] = "preference"
    loss: PreferenceLoss = DPO()
    learning_rate: float = Field(1e-4, gt=0, le=10)
