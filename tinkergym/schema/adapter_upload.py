"""A PEFT adapter as it is uploaded: which settings can be trained on, and its weights in parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from tinkergym.basics.user_json import read_json
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.model import WireModel
from tinkergym.schema.uploaded_data import Sha256
from tinkergym.user_code.quoting import quoted

PART_BYTES = 4 * 2**20
"""The size of all parts but the last."""
MOST_CONFIG_CHARACTERS = 2**20
CONFIG = "adapter_config.json"
_INSTEAD = "merge it into its base model with PEFT's merge_and_unload, and train on that model"
_MOST_RANK, _MOST_ALPHA = 512, 1e6

_WITHOUT_EFFECT = frozenset(
    {
        *("auto_mapping", "base_model_name_or_path", "peft_version", "revision", "inference_mode"),
        *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "fan_in_fan_out"),
        *("lora_dropout", "megatron_core", "qalora_group_size", "runtime_config", "ensure_weight_tying"),
        *("eva_config", "corda_config", "lora_ga_config"),
    }
)
"""Settings that say what the tensors say, too, or that only concern how PEFT trained them."""
_READ = frozenset(
    {
        *("peft_type", "task_type", "r", "lora_alpha", "use_rslora", "bias", "init_lora_weights"),
        *("rank_pattern", "alpha_pattern"),
    }
)
_KNOWN_AS = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "lora_bias": "biases of its factors",
    "modules_to_save": "whole layers next to the factors",
    "trainable_token_indices": "trained token embeddings",
    "target_parameters": "adapted parameters of experts",
    "layer_replication": "replicated layers",
    "alora_invocation_tokens": "activated LoRA",
    "loftq_config": "LoftQ",
}
_CHANGES_BASE = ("pissa", "olora", "loftq", "corda", "lora_ga")
"""Beginnings of `init_lora_weights` with which PEFT also changes the base model's weights."""


class AdapterUpload(WireModel):
    """The body of `POST /v1/adapters`."""

    model: str = Field(min_length=1, max_length=500)
    """The base model."""
    config: str = Field(max_length=MOST_CONFIG_CHARACTERS)
    """The text of `adapter_config.json`."""
    sha256: Sha256
    """Of `adapter_model.safetensors`."""
    parts: list[Sha256] = Field(min_length=1, max_length=20_000)
    """Its parts, sent before, in order."""
    base_sha256: str = Field("", pattern=r"^([0-9a-f]{64})?$")
    """The weights that it was trained on, as its export says; empty if unknown."""
    name: str = Field("", max_length=100)
    """A label to find it in lists."""


def refused(what: str, hint: str = _INSTEAD, *, code: str = "unfit_adapter") -> InvalidRequestError:
    """Return the error for an adapter that cannot be used."""
    return InvalidRequestError(what, hint=hint, field="source", code=code)


def other_base(what: str) -> InvalidRequestError:
    """Return the error for an adapter of another base model."""
    return refused(what, "name the model that it was trained on: model=...", code="other_model")


def json_object(text: str, name: str) -> dict[str, Any]:
    """Return the content of a JSON file of an adapter.

    Raises:
        InvalidRequestError: It is not a JSON object.
    """
    try:
        found = read_json(text)
    except (ValueError, RecursionError) as error:
        raise refused(f"{name} is not valid JSON: {error}", "save the adapter again with PEFT") from None
    if not isinstance(found, dict):
        raise refused(f"{name} must be a JSON object", "save the adapter again with PEFT")
    return found


def adapter_settings(text: str) -> dict[str, Any]:
    """Return the content of an `adapter_config.json` that describes a plain LoRA adapter.

    Raises:
        InvalidRequestError: It does not; the message names what is not supported.
    """
    config = json_object(text, CONFIG)
    if (kind := config.get("peft_type")) != "LORA":
        raise refused(f"{CONFIG} has the peft_type {quoted(kind)}; only LORA is supported")
    if (task := config.get("task_type")) not in (None, "CAUSAL_LM"):
        raise refused(f"the adapter was trained for the task {quoted(task)}, not CAUSAL_LM")
    _refuse_kinds(config)
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if type(rank) is not int or not 1 <= rank <= _MOST_RANK:
        raise refused(f"{CONFIG} has the rank {quoted(rank)}; a rank is 1 to {_MOST_RANK}")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha <= _MOST_ALPHA:
        raise refused(f"{CONFIG} has the lora_alpha {quoted(alpha)}; it is above 0, and at most 1e6")
    for name, usual in (("rank_pattern", rank), ("alpha_pattern", alpha)):
        pattern = config.get(name) or {}
        if not isinstance(pattern, Mapping) or any(own != usual for own in pattern.values()):
            raise refused(f"the adapter has a {name}, but only one value for all layers is supported")
    return config


def _refuse_kinds(config: Mapping[str, Any]) -> None:
    for name, value in config.items():
        if value and name not in _WITHOUT_EFFECT and name not in _READ:
            known = _KNOWN_AS.get(name)
            what = f"{known} ({name})" if known else quoted(name)
            raise refused(f"the adapter uses {what}, which is not supported")
    if (bias := config.get("bias", "none")) != "none":
        raise refused(f"the adapter trains biases (bias={quoted(bias)}), which is not supported")
    rslora = config.get("use_rslora", False)
    if not isinstance(rslora, bool):
        raise refused(f"{CONFIG} has the use_rslora {quoted(rslora)}; it is true or false")
    begun = config.get("init_lora_weights", True)
    if isinstance(begun, str) and begun.lower().startswith(_CHANGES_BASE):
        raise refused(
            f"the adapter began with init_lora_weights={quoted(begun)}, which changed the base model as well",
            "save it with PEFT's path_initial_model_for_weight_conversion",
        )
