"""Which setting somebody meant by a name that is none: by its place, its spelling, or what others call it.

Knows the models of settings by their fields only.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Union, get_args, get_origin

from pydantic import BaseModel

OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "lr": ("learning_rate",),
    "lr_scheduler_type": ("lr_schedule",),
    "num_generations": ("group_size",),
    "r": ("rank",),
    "lora_r": ("rank",),
    "lora_rank": ("rank",),
    "lora_alpha": ("alpha",),
    "beta": ("kl_coefficient",),
    "kl_coef": ("kl_coefficient",),
    "epsilon": ("clip_low",),
    "epsilon_high": ("clip_high",),
    "num_iterations": ("updates_per_step",),
    "batch_size": ("groups_per_step", "episodes_per_step"),
    "per_device_train_batch_size": ("batch_size", "groups_per_step", "episodes_per_step"),
    "max_tokens": ("max_turn_tokens",),
    "max_new_tokens": ("max_turn_tokens",),
    "max_completion_length": ("max_turn_tokens",),
    "num_train_epochs": ("epochs", "steps"),
    "num_epochs": ("epochs", "steps"),
    "epoch": ("epochs", "steps"),
    "epochs": ("steps",),
    "max_steps": ("steps",),
    "kwargs": ("env_kwargs",),
    "env_args": ("env_kwargs",),
    "env_config": ("env_kwargs",),
    "environment_kwargs": ("env_kwargs",),
}
"""What other libraries call a setting, and what it is called here: the first of them that there is."""

SERVICE_SETTINGS = frozenset(
    {
        "allow_any_model",
        "client_place_seconds",
        "cuda_graphs",
        "data_dir",
        "database_url",
        "device",
        "download_bytes",
        "dtype",
        "engine",
        "env_workers",
        "environment_stall_seconds",
        "environment_urls",
        "episodes_per_worker",
        "heartbeat_seconds",
        "host",
        "idle_policies",
        "jobs_per_pool",
        "jobs_per_tenant",
        "learner_divide_from",
        "learner_ranks",
        "lease_seconds",
        "limits.bodies_bytes",
        "limits.body_bytes",
        "limits.connections",
        "limits.data_bytes",
        "limits.episodes_per_step",
        "limits.evaluation_seconds",
        "limits.evaluations_at_once",
        "limits.job_bytes",
        "limits.job_check_seconds",
        "limits.job_checks_at_once",
        "limits.request_seconds",
        "limits.samples_in_flight",
        "min_free_bytes",
        "pool_idle_seconds",
        "port",
        "preload",
        "sleep_while_learning",
        "torch_threads",
        "vllm",
    }
)
"""What the operator sets, and no job. `models` is not among them: in a job it is a slip of `model`."""

_CLOSE = 0.6
"""How alike a name must be to a setting that stands where it was written."""

_CLOSE_ELSEWHERE = 0.8
"""And to one that stands elsewhere, of which there are many."""


def meant(
    name: str,
    section: Sequence[str],
    parent: type[BaseModel],
    root: type[BaseModel],
    arguments: Sequence[str] = (),
) -> list[str]:
    """Return the settings that `name` may stand for by their dotted names, the likeliest first.

    Args:
        name: What was written, which is no field of `parent`.
        section: Where in `root` it was written; empty for the outermost.
        parent: The model of that section.
        root: The outermost model.
        arguments: What else could have been written there: arguments of the function that takes the settings.
    """
    section_prefix = ".".join((*section, ""))
    places = {
        # A setting that stands nearer wins over one of the same name that stands elsewhere.
        **dict(_fields_below(root, ())),
        **dict(_fields_below(parent, section)),
        **{argument: argument for argument in arguments},
    }
    if section:
        # What the section would hold if another member of its union were chosen is no place.
        own = set(parent.model_fields) | {field for field, _ in _fields_below(parent, section)}
        places = {f: p for f, p in places.items() if f in own or not p.startswith(section_prefix)}
    # Who calls a function rather means one of its arguments than a setting of some section.
    for known in sorted((name, *OTHER_NAMES.get(name, ())), key=lambda known: known not in arguments):
        if known in places:
            return [places[known]]
    alike = {}
    for field, place in places.items():
        likeness = difflib.SequenceMatcher(None, name, field).ratio()
        if likeness >= (_CLOSE if field in (*parent.model_fields, *arguments) else _CLOSE_ELSEWHERE):
            alike[place] = likeness
    return sorted(alike, key=lambda place: -alike[place])[:3]


def models_in(model: type[BaseModel], field: str) -> Iterator[type[BaseModel]]:
    """Return the models that a field can hold; several for a union."""
    yield from _models(model.model_fields[field].annotation)


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in {Union, types.UnionType, Annotated, list}:
        for part in get_args(annotation):
            yield from _models(part)


def _fields_below(model: type[BaseModel], section: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each field's name with its dotted name, the outermost last, so that a dict keeps those.

    Of a union it takes the member that holds without a choice: others may not have such a setting.
    """
    for name, field in model.model_fields.items():
        inner = list(models_in(model, name)) if get_origin(field.annotation) is not list else []
        chosen = [m for m in inner if type(field.default) is m] or inner
        if len(chosen) == 1:
            yield from _fields_below(chosen[0], (*section, name))
    for name in model.model_fields:
        yield name, ".".join((*section, name))
