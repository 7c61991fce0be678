"""What the service's learner cannot do for a job, known from its settings: refused at submission."""

from __future__ import annotations

import importlib.util

from backend.admission.protocols import ModelCatalog
from backend.compute.layer_names import names, no_such_layer
from backend.config import ServiceConfig
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.job_spec import Adapter, JobSpec, LoRA
from tinkergym.schema.jobs import AnyJobSpec


def refuse_impossible(spec: AnyJobSpec, config: ServiceConfig, catalog: ModelCatalog) -> None:
    """Check a job against the model's layers, and its optimizer against what is installed.

    Raises:
        InvalidRequestError: An adapter names layers that the model does not have, or moments of 8 bits are
            asked for where several ranks divide a policy, or without bitsandbytes.
        UnknownModelError: There is no such model.
    """
    adapters: list[tuple[Adapter, str]] = [(spec.adapter, spec.model)]
    if isinstance(spec, JobSpec):
        adapters = [(one.adapter, one.model) for one in map(spec.for_agent, spec.trained_agents)]
    for adapter, model in adapters:
        if isinstance(adapter, LoRA) and adapter.target_modules:
            _require_layers(adapter, catalog.facts(model).matrices)
    if spec.optimizer.state_bits == 8:
        _require_eight_bits(config)


def _require_layers(adapter: LoRA, matrices: frozenset[str]) -> None:
    # What a path is in the model is known once it is loaded: the learner looks again, at all patterns.
    for pattern in adapter.target_modules:
        if "." not in pattern and matrices and not any(names(pattern, name) for name in matrices):
            raise no_such_layer(pattern, matrices)


def _require_eight_bits(config: ServiceConfig) -> None:
    if config.learner_ranks > 1:
        raise InvalidRequestError(
            "this service trains with several ranks, which may divide a policy; moments of 8 bits are not "
            "divided",
            hint="use state_bits=32",
            field="optimizer.state_bits",
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise InvalidRequestError(
            "an optimizer with state_bits=8 needs the package bitsandbytes, which this service does not have",
            hint="use state_bits=32, or let the operator run pip install bitsandbytes",
            field="optimizer.state_bits",
        )
