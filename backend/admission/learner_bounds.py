"""Limits of the service's learner that are known from its settings: jobs beyond them are refused."""

from __future__ import annotations

import importlib.util

from backend.admission.protocols import ModelCatalog
from backend.compute.layer_names import names, no_such_layer
from backend.config import ServiceConfig
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.parts import Adapter, LoRA
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.spec import JobSpec


def refuse_impossible(spec: JobSpec, config: ServiceConfig, catalog: ModelCatalog) -> None:
    """Check a job's adapter against the model's layers, and its optimizer against installed packages.

    Raises:
        InvalidRequestError: An adapter names layers that the model does not have, or 8-bit moments are
            requested with several ranks or without bitsandbytes.
        UnknownModelError: There is no such model.
    """
    adapters: list[tuple[Adapter, str]] = [(spec.adapter, spec.model)]
    if isinstance(spec, RLSpec):
        adapters = [(one.adapter, one.model) for one in map(spec.for_agent, spec.trained_agents)]
    for adapter, model in adapters:
        if isinstance(adapter, LoRA) and adapter.target_modules:
            _require_layers(adapter, catalog.facts(model).matrices)
    if spec.optimizer.state_bits == 8:
        _require_eight_bits(config)


def _require_layers(adapter: LoRA, matrices: frozenset[str]) -> None:
    # Full paths are known only once the model is loaded: the learner checks all patterns again.
    for pattern in adapter.target_modules:
        if "." not in pattern and matrices and not any(names(pattern, name) for name in matrices):
            raise no_such_layer(pattern, matrices)


def _require_eight_bits(config: ServiceConfig) -> None:
    if config.learner_ranks > 1:
        raise InvalidRequestError(
            "this service trains with several ranks, which may shard a policy; 8-bit moments cannot be "
            "sharded",
            hint="use state_bits=32",
            field="optimizer.state_bits",
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise InvalidRequestError(
            "an optimizer with state_bits=8 needs the package bitsandbytes, which this service does not have",
            hint="use state_bits=32, or ask the operator to run pip install bitsandbytes",
            field="optimizer.state_bits",
        )
