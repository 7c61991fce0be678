"""What the service's engine cannot do for a job, known from its settings: refused at submission."""

from __future__ import annotations

from backend.admission.protocols import ModelCatalog
from backend.config import VLLM_LEAST_TEMPERATURE, ServiceConfig
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.job_spec import FullParameters, LoRA, PlayedSpec
from tinkergym.schema.jobs import AnyJobSpec


def refuse_impossible(spec: AnyJobSpec, config: ServiceConfig, catalog: ModelCatalog) -> None:
    """Check a job against the bounds of the engine that will sample for it.

    Raises:
        InvalidRequestError: The engine does not sample the policy at all, or not at the job's temperature, or
            takes no adapter of its rank or no full weights of its model.
        UnknownModelError: There is no such model.
    """
    if config.engine == "scripted":
        _refuse_scripted(spec)
    if config.engine != "vllm":
        return
    if isinstance(spec, PlayedSpec) and spec.sampling.temperature < VLLM_LEAST_TEMPERATURE:
        raise InvalidRequestError(
            f"this service samples with vLLM, which does not do it at {spec.sampling.temperature:g}",
            hint=f"set it to {VLLM_LEAST_TEMPERATURE} or more",
            field="sampling.temperature",
        )
    most = config.vllm.max_adapter_rank
    if isinstance(spec.adapter, LoRA) and spec.adapter.rank > most:
        raise InvalidRequestError(
            f"this service samples with vLLM, set to take ranks up to {most}, not {spec.adapter.rank}",
            hint="train a smaller adapter, or let the operator raise vllm.max_adapter_rank",
            field="adapter.rank",
        )
    # By the names in the model's files, as the engine does when it is given the weights.
    if isinstance(spec.adapter, FullParameters) and catalog.facts(spec.model).has_experts:
        raise InvalidRequestError(
            f"this service samples with vLLM, which takes no full weights of {spec.model!r}: it is a "
            "mixture of experts",
            hint="train an adapter (tg.LoRA), or let the operator run the service with engine=transformers",
            field="adapter",
        )


def _refuse_scripted(spec: AnyJobSpec) -> None:
    # Who has set how far the engine may be from the learner knows that it is.
    if isinstance(spec, PlayedSpec) and spec.parity_threshold is not None:
        return
    wide = "; to try the service out set parity_threshold=100" if isinstance(spec, PlayedSpec) else ""
    raise InvalidRequestError(
        "this service samples with engine=scripted, which draws tokens evenly whatever is trained, and the "
        "parity check would stop the job",
        hint=f"let the operator run the service with engine=transformers{wide}",
    )
