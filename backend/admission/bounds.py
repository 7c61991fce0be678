"""What a service cannot do, known from its settings: jobs that need it are refused first."""

from __future__ import annotations

import importlib.util

from backend.admission.facts import Facts
from backend.admission.model_wishes import impossible_on, no_place, own_machine
from backend.admission.models_together import no_room_together
from backend.admission.offered_models import require_offered
from backend.compute.layer_names import names, no_such_layer
from backend.planning.wishes import for_all_parameters
from backend.settings.served_models import VLLM_LEAST_TEMPERATURE
from tinkergym.errors import InvalidToolError
from tinkergym.registration.packs import pack_modules
from tinkergym.rollout.table_tools import SANDBOX
from tinkergym.schema.jobs.parts import FullParameters, LoRA
from tinkergym.schema.jobs.spec import JobSpec
from tinkergym.schema.refusals import Refusal
from tinkergym.tools.sandbox.python_run import isolation_for

_APART = "leave out model, or train that seat in a separate job against an opponent"


def models_are_offered(spec: JobSpec, facts: Facts) -> JobSpec | Refusal:
    """Refuse models that the tenant may not name, and several that one worker cannot serve together."""
    config, others = facts.config, spec.other_models
    for field, model in spec.models().items():
        require_offered(config, facts.tenant, model, field=field)
    for model, agent in others.items():
        require_offered(config, facts.tenant, model, field=f"agents.{agent}.model")
        if config.engine == "vllm" or (config.placement_of(spec.model).learner.ranks or 1) > 1:
            what = "samples with vLLM" if config.engine == "vllm" else "trains with several ranks"
            return Refusal(
                f"agents.{agent}.model",
                f"this service {what}, where each worker serves a single base model, but {agent!r} has a "
                "different one",
                _APART,
                "several_models",
            )
    if not others:
        return spec
    field = f"agents.{next(iter(others.values()))}.model"
    return no_room_together(field, (spec.model, *others), _APART, facts) or spec


def models_have_a_place(spec: JobSpec, facts: Facts) -> JobSpec | Refusal:
    """Refuse models, or training of all their parameters, for which no node of the service has room."""
    config, known = facts.config, dict(facts.refusals())
    # The scheduler looks for places of listed models. Others are known here, and on this machine only.
    unlisted = {own.model for own in map(spec.for_agent, spec.trained_agents)} - config.models.keys()
    if unlisted and not config.ray.address and (gpus := facts.gpus()):
        for name, reason in impossible_on(config, [own_machine(gpus)], unlisted).items():
            known[name] = no_place(reason)
    for agent in spec.trained_agents:
        own = spec.for_agent(agent)
        names = [own.model]
        if isinstance(own.adapter, FullParameters):
            names.append(for_all_parameters(own.model))
        for name in names:
            found = known.get(name)
            if found is not None and found.code == "no_place":
                field = "model" if name == own.model else "adapter"
                return Refusal(field, found.message, found.hint, found.code)
    return spec


def tools_are_installed(spec: JobSpec, facts: Facts) -> JobSpec | Refusal:
    """Refuse tools that would make the service import or run code that its operator did not choose.

    Raises:
        InvalidToolError: It is the sandbox, and this service or its machine does not allow it.
    """
    del facts
    packs = pack_modules() - {"tinkergym"}
    for agent in spec.trained_agents if spec.played_by == "server" else ():
        tools, field = spec.tools_of(agent), f"agents.{agent}.tools"
        for one in () if tools is None else tools.tools:
            module = one.tool.partition(":")[0].partition(".")[0]
            if one.arguments or (one.tool != SANDBOX and module not in packs):
                return Refusal(
                    field,
                    f"the service does not run the tool {one.tool!r} of {agent!r}"
                    + (" with arguments" if one.arguments else ""),
                    f"name {SANDBOX} or a tool that a pack marks with @tool, without arguments, or play the "
                    "episodes with rollout='client'",
                    "foreign_tool",
                )
            if one.tool == SANDBOX:
                _require_isolation(field)
    return spec


def _require_isolation(field: str) -> None:
    try:
        isolation_for(None)
    except InvalidToolError as error:
        error.field = field
        raise


def engine_can_sample(spec: JobSpec, facts: Facts) -> JobSpec | Refusal:
    """Refuse what the service's engine cannot sample: a temperature, a rank, full weights of a model."""
    engine = facts.config.engine
    if engine == "scripted":
        return spec if spec.samples_only else _scripted(spec) or spec
    return (_vllm(spec, facts) if engine == "vllm" else None) or spec


def _vllm(spec: JobSpec, facts: Facts) -> Refusal | None:
    most = facts.config.vllm.max_adapter_rank
    drawn = spec.row_decoding
    if drawn is not None and 0 < drawn.temperature < VLLM_LEAST_TEMPERATURE:
        return Refusal(
            "decoding.temperature",
            f"this service samples with vLLM, which does not support a temperature of {drawn.temperature:g}",
            f"set it to 0, or to {VLLM_LEAST_TEMPERATURE} or more",
            "engine_temperature",
        )
    if spec.played and spec.sampling.temperature < VLLM_LEAST_TEMPERATURE:
        return Refusal(
            "sampling.temperature",
            f"this service samples with vLLM, which does not support a temperature of "
            f"{spec.sampling.temperature:g}",
            f"set it to {VLLM_LEAST_TEMPERATURE} or more",
            "engine_temperature",
        )
    if isinstance(spec.adapter, LoRA) and spec.adapter.rank > most:
        return Refusal(
            "adapter.rank",
            f"this service samples with vLLM, configured for ranks up to {most}, not {spec.adapter.rank}",
            "train a smaller adapter, or ask the operator to raise vllm.max_adapter_rank",
            "engine_rank",
        )
    # Checked by the names in the model's files, as the engine does with the weights.
    if isinstance(spec.adapter, FullParameters) and facts.catalog.facts(spec.model).has_experts:
        return Refusal(
            "adapter",
            f"this service samples with vLLM, which does not support full weights of {spec.model!r}, a "
            "mixture of experts",
            "train an adapter (tg.LoRA), or ask the operator to run the service with engine=transformers",
            "engine_full_weights",
        )
    return None


def _scripted(spec: JobSpec) -> Refusal | None:
    # A user who sets the threshold accepts the difference between engine and learner.
    if spec.played and spec.played.parity_threshold is not None:
        return None
    wide = "; to try out the service, set parity_threshold=100" if spec.played else ""
    return Refusal(
        "",
        "this service samples with engine=scripted, which draws tokens uniformly regardless of training, so "
        "the parity check would stop the job",
        f"ask the operator to run the service with engine=transformers{wide}",
        "engine_scripted",
    )


def learner_can_train(spec: JobSpec, facts: Facts) -> JobSpec | Refusal:
    """Refuse layers that the model does not have, and an optimizer whose package is missing."""
    for own in map(spec.for_agent, spec.trained_agents):
        if isinstance(own.adapter, LoRA) and own.adapter.target_modules:
            _require_layers(own.adapter, facts.catalog.facts(own.model).matrices)
    if spec.optimizer.state_bits != 8:
        return spec
    field = "optimizer.state_bits"
    if (facts.config.placement_of(spec.model).learner.ranks or 1) > 1:
        return Refusal(
            field,
            "this service trains with several ranks, which may shard a policy; 8-bit moments cannot be "
            "sharded",
            "use state_bits=32",
            "sharded_moments",
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        return Refusal(
            field,
            "an optimizer with state_bits=8 needs the package bitsandbytes, which this service does not have",
            "use state_bits=32, or ask the operator to run pip install bitsandbytes",
            "no_bitsandbytes",
        )
    return spec


def quantized_bases_train_adapters(spec: JobSpec, facts: Facts) -> JobSpec | Refusal:
    """Refuse what a base model with weights of 4 or 8 bits cannot do."""
    config = facts.config
    for own in map(spec.for_agent, spec.trained_agents):
        if isinstance(own.adapter, FullParameters) and (kind := config.quantization_of(own.model)):
            return Refusal(
                "adapter",
                f"{own.model!r} has weights in {kind}, on which only adapters are trained",
                "train an adapter (tg.LoRA), or choose another model",
                "quantized_base",
            )
    for field, model in spec.models().items():
        if not (kind := config.quantization_of(model)):
            continue
        if importlib.util.find_spec("bitsandbytes") is None:
            return Refusal(
                field,
                f"{model!r} has weights in {kind}, which need bitsandbytes, which is not installed here",
                "choose another model, or ask the operator to run pip install bitsandbytes",
                "no_bitsandbytes",
            )
        known = facts.catalog.facts(model)
        if known.has_experts or known.image_token_id is not None:
            return Refusal(
                field,
                f"{model!r} has weights in {kind}, which is not supported for mixtures of experts and models "
                "with images",
                "choose another model, or ask the operator to leave out `quantized`",
                "quantized_family",
            )
    return spec


def _require_layers(adapter: LoRA, matrices: frozenset[str]) -> None:
    # Full paths are known only once the model is loaded: the learner checks all patterns again.
    for pattern in adapter.target_modules:
        if "." not in pattern and matrices and not any(names(pattern, name) for name in matrices):
            raise no_such_layer(pattern, matrices)
