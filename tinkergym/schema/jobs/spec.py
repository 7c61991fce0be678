"""A job of any kind."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, TypeAdapter, WrapValidator

from tinkergym.schema.algorithm_registry import as_stored
from tinkergym.schema.jobs.dataset import PreferenceSpec, SFTSpec
from tinkergym.schema.jobs.distillation import DistillationSpec
from tinkergym.schema.jobs.inference import InferenceSpec
from tinkergym.schema.jobs.own_loop import PolicySpec
from tinkergym.schema.jobs.rl import RLSpec

JobSpec = Annotated[
    RLSpec | SFTSpec | PreferenceSpec | DistillationSpec | InferenceSpec | PolicySpec,
    Field(discriminator="kind"),
]

KINDS: dict[str, type[JobSpec]] = {
    "rl": RLSpec,
    "sft": SFTSpec,
    "preference": PreferenceSpec,
    "distillation": DistillationSpec,
    "inference": InferenceSpec,
    "policy": PolicySpec,
}

StoredSpec = Annotated[JobSpec, WrapValidator(as_stored)]
"""Settings that were accepted before: what is no longer installed here can still be shown."""

STORED_SPEC: TypeAdapter[
    RLSpec | SFTSpec | PreferenceSpec | DistillationSpec | InferenceSpec | PolicySpec
] = TypeAdapter(StoredSpec)


def stored_spec(written: str) -> JobSpec:
    """Parse the stored JSON of a job's settings."""
    return STORED_SPEC.validate_json(written)
