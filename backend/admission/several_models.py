"""Jobs whose seats use several base models: whether all of them can be served together."""

from __future__ import annotations

from collections.abc import Callable

from backend.admission.models import require_offered
from backend.catalog.memory_needs import expected_bytes
from backend.compute.memory import machine_bytes
from backend.config import ServiceConfig
from backend.store.tenant import TenantStore
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.spec import JobSpec


def refuse_impossible(
    spec: JobSpec,
    config: ServiceConfig,
    tenant: TenantStore,
    memory: Callable[[], int] = machine_bytes,
) -> None:
    """Check that one worker can hold all base models of a job.

    Args:
        spec: The job's settings.
        config: The service's settings.
        tenant: The job's tenant.
        memory: This machine's memory in bytes.

    Raises:
        UnknownModelError: A seat's model is not available.
        InvalidRequestError: They can never fit into the memory for models together, or the engine or the
            learner serves only one model.
    """
    if not spec.other_models:
        return
    for model, agent in spec.other_models.items():
        field = f"agents.{agent}.model"
        require_offered(config, tenant, model, field=field)
        if config.engine == "vllm" or config.learner_ranks > 1:
            what = "samples with vLLM" if config.engine == "vllm" else "trains with several ranks"
            raise InvalidRequestError(
                f"this service {what}, where each worker serves a single base model, but {agent!r} has a "
                f"different one",
                hint="leave out model, or train that seat in a separate job against an opponent",
                field=field,
            )
    all_models = [spec.model, *spec.other_models]
    needed = {model: expected_bytes(model, config.models) for model in all_models}
    budget = int(config.pools_memory * memory())
    if sum(needed.values()) > budget:
        each = ", ".join(f"{model!r} {size / 1e9:.1f}" for model, size in needed.items())
        raise InvalidRequestError(
            f"the job's base models need about {sum(needed.values()) / 1e9:.1f} GB together ({each}), but "
            f"models may use {budget / 1e9:.1f} GB",
            hint="choose smaller models, or let the operator raise pools_memory",
            field=f"agents.{next(iter(spec.other_models.values()))}.model",
        )
