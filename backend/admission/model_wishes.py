"""What the service's settings and a model's files say about the place that the model needs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from backend.catalog.models import folder_at_hand, read_json, read_model_facts
from backend.catalog.tensor_files import expected_bytes
from backend.config import ServiceConfig
from backend.planning.machines import Machine, NotPlaced, Placed, Wish
from backend.planning.memory_needs import teacher_bytes
from backend.planning.model_plan import plan
from backend.planning.model_shape import ModelShape
from backend.planning.wishes import for_all_parameters
from backend.processes.machine_gpus import machine_gpus
from backend.processes.memory import machine_bytes
from tinkergym.errors import InvalidRequestError, TinkerGymError
from tinkergym.schema.events import ErrorView

OWN_MACHINE = "this machine"
_OWN_SHARE = 0.0001
"""On our own Ray every process asks for this much of its single CPU per CPU: the machine is not Ray's to
divide, and a model that does not fit is a matter of `pools_memory`."""


def own_machine(gpus: Mapping[str, int] | None = None) -> Machine:
    """Return this machine, without a cluster.

    Args:
        gpus: The memory of its GPUs; by default what nvidia-smi says now.
    """
    return Machine(
        node_id=OWN_MACHINE,
        cpus=float(os.cpu_count() or 1),
        memory_bytes=machine_bytes(),
        gpus=tuple((machine_gpus() if gpus is None else gpus).values()),
    )


def model_shape(config: ServiceConfig, model: str) -> ModelShape | None:
    """Return a model's dimensions; None if its files are not here, or do not say."""
    try:
        folder = folder_at_hand(model, config.model_paths)
        if folder is None:
            return None
        content = read_json(folder / "config.json")
        return ModelShape.of(content, stored_parameters=read_model_facts(folder).parameters)
    except (TinkerGymError, OSError, RuntimeError, ValueError):
        return None  # The model's worker says what is wrong with it.


def share(config: ServiceConfig) -> float:
    """Return how much of a CPU a process asks Ray for that needs one."""
    return 1.0 if config.ray.address else _OWN_SHARE


def wish_of(
    config: ServiceConfig,
    model: str,
    name: str = "",
    *,
    memory_bytes: int | None = None,
) -> Wish:
    """Return what a model needs.

    Args:
        config: The service's settings.
        model: As jobs name it.
        name: Of the place; by default the model's.
        memory_bytes: Of its worker; by default expected from its files.
    """
    placement, keeps = config.placement_of(model), config.vllm.full_weights == "device"
    if placement.tensor_parallel is None and (keeps or config.engine != "vllm"):  # Of one GPU only.
        placement = placement.model_copy(update={"tensor_parallel": 1})
    part = share(config)
    ranks = placement.learner.ranks or 1
    memory = expected_bytes(model, config.model_paths) if memory_bytes is None else memory_bytes
    teachers = config.teachers_of(model)
    memory += sum(expected_bytes(each, config.model_paths) for each in teachers)
    threads = config.torch_threads
    cpus = placement.cpus or (threads if ranks == 1 else 1.0)
    return Wish(
        name=name or model,
        model=model,
        placement=placement,
        shape=model_shape(config, model),
        number_bytes=_number_bytes(config),
        quantized=config.quantization_of(model),
        teacher_bytes=sum(_teacher_bytes(config, each) for each in teachers),
        keeps_full_weights=keeps,
        engine_share=config.vllm.gpu_memory if config.engine == "vllm" else 0.0,
        cpus=part * cpus,
        memory_bytes=(placement.memory_bytes or memory) if config.ray.address else 0,
        rank_cpus=part * max(1.0, threads / ranks),
        gpu_cpus=part,
        env_worker_cpus=part * max(config.env_workers, 1) * config.ray.env_worker_cpus,
    )


def no_place(reason: str) -> ErrorView:
    """Return the error for a job whose model has no place, with a reason of `impossible_on`."""
    error = InvalidRequestError(
        f"the model has no place on the service's nodes, {reason}",
        hint="choose another model, or ask the operator: tinkergym plan shows what would fit",
        field="model",
        code="no_place",
    )
    return ErrorView.model_validate(error.to_wire())


def _number_bytes(config: ServiceConfig) -> int:
    return 2 if config.dtype == "bfloat16" else 4


def _teacher_bytes(config: ServiceConfig, model: str) -> int:
    shape = model_shape(config, model)
    if shape is None:
        return expected_bytes(model, config.model_paths)
    return teacher_bytes(shape, number_bytes=_number_bytes(config), quantized=config.quantization_of(model))


def impossible_on(
    config: ServiceConfig, machines: Sequence[Machine], models: Iterable[str] | None = None
) -> dict[str, str]:
    """Return why models have no place on nodes even if nothing else runs there.

    Args:
        config: The service's settings.
        machines: The nodes; without any nothing is known.
        models: Which; by default those of the settings.

    Returns:
        By model, or for jobs that train all of its parameters by `for_all_parameters(model)`.
    """
    if not machines:
        return {}
    found: dict[str, Placed | NotPlaced] = {}
    for wish in (wish_of(config, model) for model in (config.models if models is None else models)):
        full = replace(
            wish,
            name=for_all_parameters(wish.model),
            placement=wish.placement.model_copy(update={"trains": "full"}),
        )
        for one in (wish, full):
            found |= plan(machines, [one])
    return {name: each.reason for name, each in found.items() if isinstance(each, NotPlaced) and each.forever}
