"""Whether one worker has room for several base models: those of a job's seats, or of student and teacher.

A worker's place is planned for its own model and that model's `teachers`.
"""

from __future__ import annotations

from collections.abc import Sequence

from backend.admission.facts import Facts
from backend.catalog.tensor_files import expected_bytes
from tinkergym.schema.refusals import Refusal


def no_room_together(field: str, models: Sequence[str], instead: str, facts: Facts) -> Refusal | None:
    """Return why one worker cannot have base models together.

    Args:
        field: The setting that asks for it.
        models: The worker's own model first.
        instead: What to do without the others.
        facts: See `Facts`.
    """
    config, model = facts.config, models[0]
    placement = config.placement_of(model)
    needed = {each: expected_bytes(each, config.model_paths) for each in models}
    total = sum(needed.values())
    sizes = ", ".join(f"{name!r} {size / 1e9:.1f}" for name, size in needed.items())
    what = f"the job's base models need about {total / 1e9:.1f} GB together ({sizes}), but"
    if _has_gpus(model, facts):
        return Refusal(
            field,
            f"{what} the GPUs of a worker are planned for {model!r} alone",
            f"{instead}, or let the operator set models.{model}.placement.gpus=0",
            "several_models",
        )
    if config.ray.address:
        room, setting = placement.memory_bytes or needed[model], f"models.{model}.placement.memory_bytes"
        where = f"a worker of {model!r} has {room / 1e9:.1f} GB of its node"
    else:
        room, setting = int(config.pools_memory * facts.memory()), "pools_memory"
        where = f"models may use {room / 1e9:.1f} GB"
    if total <= room:
        return None
    hint = f"choose smaller models, or let the operator raise {setting}"
    return Refusal(field, f"{what} {where}", hint, "models_too_large")


def no_room_for_teacher(
    student: str, teacher: str, model: str, facts: Facts, *, all_parameters: bool
) -> Refusal | None:
    """Return why no room was planned for a teacher next to a student.

    Args:
        student: The job's base model.
        teacher: What the job names: a model, or a policy's version.
        model: The teacher's base model.
        facts: See `Facts`.
        all_parameters: Whether the teacher trained all of them.
    """
    has_gpus = _has_gpus(student, facts)
    # On the CPUs of one machine no place is planned: memory is measured, and idle models end.
    if model == student or not (has_gpus or facts.config.ray.address):
        return None
    if model not in facts.config.teachers_of(student):
        instead = f"choose a teacher on {student!r}, or let the operator list {model!r} in "
        instead += f"models.{student}.teachers"
        return no_room_together("teacher", (student, model), instead, facts)
    if all_parameters and has_gpus:
        return Refusal(
            "teacher",
            f"{teacher} trained all parameters of {model!r}, and the GPUs of a worker of {student!r} "
            "are planned for that model with an adapter",
            f"choose a teacher with an adapter, or download its model and let the operator list it in "
            f"models.{student}.teachers",
            "several_models",
        )
    return None


def _has_gpus(model: str, facts: Facts) -> bool:
    """Whether a model surely runs on GPUs. On a cluster, its worker refuses what its place does not have."""
    gpus = facts.config.placement_of(model).gpus
    return bool(gpus if facts.config.ray.address else gpus != 0 and facts.gpus())
