"""Limits of the service's engine that are known from its settings: jobs beyond them are refused."""

from __future__ import annotations

from backend.admission.protocols import ModelCatalog
from backend.config import VLLM_LEAST_TEMPERATURE, ServiceConfig
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.common import PlayedSpec
from tinkergym.schema.jobs.parts import FullParameters, LoRA
from tinkergym.schema.jobs.spec import JobSpec


def refuse_impossible(spec: JobSpec, config: ServiceConfig, catalog: ModelCatalog) -> None:
    """Check a job against the limits of the engine that will sample for it.

    Raises:
        InvalidRequestError: The engine cannot sample the policy, or not at the job's temperature, or does not
            support an adapter of its rank or full weights of its model.
        UnknownModelError: There is no such model.
    """
    if config.engine == "scripted":
        _refuse_scripted(spec)
    if config.engine != "vllm":
        return
    if isinstance(spec, PlayedSpec) and spec.sampling.temperature < VLLM_LEAST_TEMPERATURE:
        raise InvalidRequestError(
            f"this service samples with vLLM, which does not support a temperature of "
            f"{spec.sampling.temperature:g}",
            hint=f"set it to {VLLM_LEAST_TEMPERATURE} or more",
            field="sampling.temperature",
        )
    most = config.vllm.max_adapter_rank
    if isinstance(spec.adapter, LoRA) and spec.adapter.rank > most:
        raise InvalidRequestError(
            f"this service samples with vLLM, configured for ranks up to {most}, not {spec.adapter.rank}",
            hint="train a smaller adapter, or ask the operator to raise vllm.max_adapter_rank",
            field="adapter.rank",
        )
    # Checked by the names in the model's files, as the engine does with the weights.
    if isinstance(spec.adapter, FullParameters) and catalog.facts(spec.model).has_experts:
        raise InvalidRequestError(
            f"this service samples with vLLM, which does not support full weights of {spec.model!r}, a "
            f"mixture of experts",
            hint="train an adapter (tg.LoRA), or ask the operator to run the service with "
            "engine=transformers",
            field="adapter",
        )


def _refuse_scripted(spec: JobSpec) -> None:
    # A user who sets the threshold accepts the difference between engine and learner.
    if isinstance(spec, PlayedSpec) and spec.parity_threshold is not None:
        return
    wide = "; to try out the service, set parity_threshold=100" if isinstance(spec, PlayedSpec) else ""
    raise InvalidRequestError(
        "this service samples with engine=scripted, which draws tokens uniformly regardless of training, "
        "so the parity check would stop the job",
        hint=f"ask the operator to run the service with engine=transformers{wide}",
    )
