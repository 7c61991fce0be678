"""Models by name: where their files are, and what is known about them without loading them.

Reads only JSON and the headers of safetensors files. Does not import torch, so that the gateway can serve a
model's renderer. Nothing from a model directory is ever executed or unpickled.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from backend.catalog.image_rules import image_rules
from backend.catalog.template_probe import Probe, probe_template
from backend.catalog.tensor_files import stored_tensors, tensors_of_file, weights_sample_sha256
from backend.compute.supported_models import CONTEXT_KEYS, context_length, sees
from tinkergym.agent.turn_ends import special_ids
from tinkergym.errors import TemplateError, UnknownModelError
from tinkergym.schema.views import EXPORT_FILE, ImageRules, ProcessorFile, RendererBundle, TrainedWith

EXPERT = re.compile(r"(.+\.)experts\.")
"""How the name of a tensor of an expert in a mixture begins, with the path of the mixture."""
_EMBEDDING = re.compile(r".*embed.*|wte|wpe")
"""The last names of tables of tokens and positions, which no adapter changes."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_WHERE_FROM = "use the model's original file, or write it with save_pretrained"
_LONGEST_SHOWN = 200
"""Characters of a path in an error."""
_MOST_JSON_BYTES = 16 << 20
"""Longest configuration or chat template: a longer one is invalid, and would take memory from all users of
the service."""
_MOST_TOKENIZER_BYTES = 256 << 20
_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The contents of a model directory."""

    directory: Path
    architecture: str
    """The name of the model class, e.g. `Qwen3ForCausalLM`."""
    context_length: int
    """Most tokens of prompt and completion together."""
    vocabulary_size: int
    parameters: int
    """Number of elements in the weights files."""
    has_experts: bool
    """Whether those files contain a mixture of experts."""
    matrices: frozenset[str] = frozenset()
    """The last names of all layers with a matrix: `q_proj`, `embed_tokens`. Empty if unknown."""
    image_token_id: int | None = None
    """The placeholder of a model with images; None for a text-only model."""


def resolve_model(
    name: str,
    offered: Mapping[str, str],
    *,
    allow_any: bool = True,
    most_bytes: int | None = None,
    with_weights: bool = True,
) -> Path:
    """Find the directory of a model.

    Args:
        name: An offered name, a directory of this machine, or a Hugging Face hub id, which is downloaded
            unless it is in the local cache.
        offered: Directories or hub ids by name, as the operator set them.
        allow_any: Whether names outside `offered` may be used.
        most_bytes: Size limit of a download that is not `offered`; None means any size.
        with_weights: Whether to refuse a directory that has no weights.

    Raises:
        UnknownModelError: There is no such model, or it has no safetensors weights.
    """
    target = offered.get(name)
    if target is None:
        if not allow_any:
            raise _unknown(name, offered, "the service does not offer this model")
        target = name
    if not target.strip():
        raise _unknown(name, offered, "a model needs a name")
    directory = _folder(target)
    if directory is None:
        if not _may_be_hub_id(target):
            raise _unknown(name, offered, f"{_no_folder(target)}, and it is not a named model or a hub id")
        from backend.catalog import hub  # A service with local models does not need the hub's client.

        try:
            directory = hub.downloaded(target, most_bytes=None if name in offered else most_bytes)
        except hub.NotDownloadedError as error:
            # `runs/mine` also looks like a hub id.
            reason = f"{_no_folder(target)}, and {error.reason}"
            raise _unknown(name, offered, reason, error.advice) from error
    if not (directory / "config.json").is_file():
        place = str(directory.absolute())
        if (directory / "adapter_config.json").is_file():
            raise UnknownModelError(
                f"{place!r} contains an adapter, which is not a model without its base",
                hint="write a whole model with `tinkergym export JOB OUT --merge`, or start from the "
                "policy of the job that trained it: initial_policy, on the command line --from JOB",
                field="model",
            )
        raise _unknown(name, offered, f"{place!r} has no config.json")
    if with_weights:
        require_weights(name, directory)
    return directory


def folder_at_hand(name: str, offered: Mapping[str, str]) -> Path | None:
    """Return the directory of a model without downloading anything; None if it is not here.

    Args:
        name: As for `resolve_model`.
        offered: As for `resolve_model`.
    """
    target = offered.get(name, name)
    directory = _folder(target)
    if directory is None and _may_be_hub_id(target):
        from backend.catalog import hub  # A service with local models does not need the hub's client.

        directory = hub.at_hand(target)
    return directory if directory is not None and (directory / "config.json").is_file() else None


def require_weights(name: str, directory: Path) -> None:
    """Refuse a model's directory that has no weights.

    Raises:
        UnknownModelError: It has no safetensors files.
    """
    if not any(directory.glob("*.safetensors")):
        raise UnknownModelError(
            f"the model {name!r} has no *.safetensors weights",
            hint="weights in pickle format (.bin, .pt) are never loaded; convert them with save_pretrained",
            field="model",
        )


def without_folder(offered: Mapping[str, str]) -> dict[str, str]:
    """Return, by name, what is wrong with offered models whose folder is missing; hub ids are not checked.

    Args:
        offered: As for `resolve_model`.
    """
    return {
        name: _no_folder(target)
        for name, target in offered.items()
        if _folder(target) is None and not _may_be_hub_id(target)
    }


def read_model_facts(directory: Path) -> ModelFacts:
    """Read a model's configuration and the headers of its weights.

    Raises:
        UnknownModelError: A file is missing or broken.
    """
    config = read_json(directory / "config.json")
    nested = config.get("text_config")
    text = nested if isinstance(nested, dict) else config
    named = config.get("architectures")
    vocabulary_size = text.get("vocab_size")
    files = [tensors_of_file(path) for path in sorted(directory.glob("*.safetensors"))]
    return ModelFacts(
        directory=directory,
        architecture=str(named[0]) if isinstance(named, list) and named else "unknown",
        context_length=_context_length(text, directory),
        vocabulary_size=vocabulary_size if isinstance(vocabulary_size, int) else 0,
        parameters=sum(prod(tensor.shape) for tensors in files for tensor in tensors.values()),
        has_experts=any(EXPERT.match(name) for tensors in files for name in tensors),
        matrices=frozenset(
            name.split(".")[-2]
            for tensors in files
            for name, tensor in tensors.items()
            if name.endswith(".weight")
            and len(tensor.shape) == 2
            and name.count(".") > 1
            and not _EMBEDDING.fullmatch(name.split(".")[-2])
        ),
        image_token_id=config.get("image_token_id") if sees(config.get("model_type")) else None,
    )


def image_rules_of(directory: Path) -> ImageRules | None:
    """Return how a model's processor writes images; None for a text-only model.

    Raises:
        UnknownModelError: A file is missing or broken, or its processor is not supported.
    """
    config = read_json(directory / "config.json")
    if not sees(config.get("model_type")):
        return None
    tokenizer_file = directory / "tokenizer.json"
    tokenizer = _parse_json(_read_text(tokenizer_file, most_bytes=_MOST_TOKENIZER_BYTES), tokenizer_file)
    processor = read_json(directory / "processor_config.json", missing_ok=True)
    if "image_processor" not in processor:
        older = read_json(directory / "preprocessor_config.json", missing_ok=True)
        processor = {**processor, "image_processor": older}
    return image_rules(config, processor, _token_ids(tokenizer), directory)


def load_renderer_bundle(
    name: str, directory: Path, chat_template: str = "", *, probe: Probe = probe_template
) -> RendererBundle:
    """Collect what a client needs to turn messages into this model's token ids.

    Args:
        name: The model's name.
        directory: The folder of its files.
        chat_template: Replaces the model's own.
        probe: Compiles and renders the template, here or in a process with limits.

    Raises:
        UnknownModelError: The directory has no readable `tokenizer.json`.
        TemplateError: The model has no chat template, or it does not compile, or does too much work.
    """
    tokenizer_file = directory / "tokenizer.json"
    if not tokenizer_file.is_file():
        raise UnknownModelError(
            f"the model {name!r} has no tokenizer.json",
            hint="save its fast tokenizer next to the weights, with AutoTokenizer and save_pretrained",
            field="model",
        )
    tokenizer_json = _read_text(tokenizer_file, most_bytes=_MOST_TOKENIZER_BYTES)
    tokenizer = _parse_json(tokenizer_json, tokenizer_file)
    settings = read_json(directory / "tokenizer_config.json", missing_ok=True)
    template = chat_template or _chat_template(name, directory, settings)
    special = _special_tokens(directory, settings)
    named = _named_stop_ids(directory, special, _token_ids(tokenizer))
    try:
        stop_ids, names = probe(template, special, special_ids(tokenizer), sorted(named))
    except TemplateError as error:
        error.field = "chat_template" if chat_template else "model"
        raise
    if not stop_ids:
        raise UnknownModelError(
            f"the model {name!r} does not define a token that ends a completion",
            hint="set eos_token_id in its generation_config.json",
            field="model",
        )
    most_tokens = read_model_facts(directory).context_length
    images = image_rules_of(directory)
    made_of: list[Any] = [tokenizer_json, template, special, stop_ids, most_tokens]
    made_of += [images.model_dump(exclude_none=True)] if images else []
    given = settings.get("add_bos_token")
    add_bos_token = given if isinstance(given, bool) else None
    made_of += [] if add_bos_token is None else [add_bos_token]
    content = json.dumps(made_of, sort_keys=True)
    return RendererBundle(
        model=name,
        tokenizer_json=tokenizer_json,
        chat_template=template,
        template_names=names,
        special_tokens=special,
        add_bos_token=add_bos_token,
        stop_ids=stop_ids,
        context_length=most_tokens,
        images=images,
        sha256=hashlib.sha256(content.encode()).hexdigest(),
        base_sha256=_base_sha256(directory),
        processor_files=_processor_files(directory) if images else {},
        trained_with=_trained_with(directory),
    )


def _processor_files(directory: Path) -> dict[ProcessorFile, str]:
    names: tuple[ProcessorFile, ...] = get_args(ProcessorFile)
    return {
        name: _read_text(directory / name, most_bytes=_MOST_JSON_BYTES)
        for name in names
        if (directory / name).is_file()
    }


def _base_sha256(directory: Path) -> str:
    """Identify the weights by which an exported adapter knows its base model."""
    if not any(directory.glob("*.safetensors")):
        return ""
    return weights_sample_sha256(stored_tensors(directory))


def _folder(target: str) -> Path | None:
    """Return the folder with that name; None if there is none, or if the name cannot be a folder."""
    try:
        directory = Path(target).expanduser()
        return directory if directory.is_dir() else None
    except (OSError, RuntimeError, ValueError):  # Too long, the home of an unknown user, or with a zero byte.
        return None


def _may_be_hub_id(target: str) -> bool:
    return _HUB_ID.fullmatch(target) is not None and not target.startswith(("./", "../"))


def _no_folder(target: str) -> str:
    """Say where a folder was looked up: the user may mean one on another machine or in another place."""
    try:
        place = str(Path(target).expanduser().absolute())
    except (RuntimeError, ValueError):
        return "a folder cannot have that name"
    shown = place if len(place) <= _LONGEST_SHOWN else f"{place[:_LONGEST_SHOWN]}..."
    return f"{shown!r} is not a folder on the service's machine"


def _unknown(name: str, offered: Mapping[str, str], reason: str, advice: str = "") -> UnknownModelError:
    # A named model whose folder is missing is spelled correctly.
    close = difflib.get_close_matches(name, offered, n=3, cutoff=0.5) if name not in offered else []
    known = f"available: {', '.join(sorted(offered))}" if offered else "no models are offered by name"
    guess = f"did you mean {' or '.join(repr(match) for match in close)}? " if close else ""
    hint = f"{advice}; {known}" if advice else guess + known
    return UnknownModelError(f"unknown model {name!r}: {reason}", hint=hint, field="model")


def read_json(path: Path, *, missing_ok: bool = False) -> dict[str, Any]:
    """Read a JSON object of a model directory.

    Raises:
        UnknownModelError: The file is missing, too large, or is not an object.
    """
    if missing_ok and not path.is_file():
        return {}
    return _parse_json(_read_text(path, most_bytes=_MOST_JSON_BYTES), path)


def _read_text(path: Path, *, most_bytes: int) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UnknownModelError(
            f"cannot read {str(path)!r}: {error}", hint=_WHERE_FROM, field="model"
        ) from error
    if len(content) > most_bytes:
        raise UnknownModelError(
            f"{str(path)!r} has more than {most_bytes} bytes", hint=_WHERE_FROM, field="model"
        )
    return text


def _parse_json(text: str, path: Path) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnknownModelError(
            f"{str(path)!r} is not JSON: {error}", hint=_WHERE_FROM, field="model"
        ) from error
    if not isinstance(content, dict):
        raise UnknownModelError(f"{str(path)!r} is not a JSON object", hint=_WHERE_FROM, field="model")
    return content


def _context_length(config: Mapping[str, Any], directory: Path) -> int:
    length = context_length(config)
    if length is None:
        kind = config.get("model_type", "unknown")
        raise UnknownModelError(
            f"the model in {str(directory)!r}, of type {kind!r}, does not specify its context length",
            hint="mamba, rwkv, bloom, mpt and others without positions do not: choose another model, or set "
            f"one of {', '.join(CONTEXT_KEYS)} in its config.json for an engine that runs it",
            field="model",
        )
    return length


def _token_ids(tokenizer: Mapping[str, Any]) -> dict[str, int]:
    ids: dict[str, int] = {}
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        ids |= vocabulary
    ids |= {token["content"]: token["id"] for token in tokenizer.get("added_tokens") or []}
    return ids


def _chat_template(name: str, directory: Path, settings: Mapping[str, Any]) -> str:
    file = directory / "chat_template.jinja"
    if file.is_file():
        return _read_text(file, most_bytes=_MOST_JSON_BYTES)
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if not isinstance(template, str) or not template:
        raise TemplateError(
            f"the model {name!r} has no chat template",
            hint="set chat_template in the job ('plain' suits base models), put a chat_template.jinja next "
            "to the weights, or choose the instruction-tuned variant",
            field="model",
        )
    return template


def _trained_with(directory: Path) -> TrainedWith | None:
    """Return how a policy was prompted in training, if its folder is an export."""
    file = directory / EXPORT_FILE
    if not file.is_file():
        return None
    said = read_json(file)
    try:
        return TrainedWith.model_validate({key: said[key] for key in TrainedWith.model_fields if key in said})
    except ValidationError as error:
        raise UnknownModelError(
            f"{str(file)!r} does not say how the policy was trained: {error.errors()[0]['msg']}",
            hint="export the policy again, or remove the file",
            field="model",
        ) from error


def _special_tokens(directory: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for source in (read_json(directory / "special_tokens_map.json", missing_ok=True), settings):
        for key in _SPECIAL_TOKENS:
            token = source.get(key)
            if isinstance(token, dict):
                token = token.get("content")
            if isinstance(token, str):
                found[key] = token
    return found


def _named_stop_ids(directory: Path, special: Mapping[str, str], ids: Mapping[str, int]) -> set[int]:
    stops: set[int] = set()
    for file in ("generation_config.json", "config.json"):
        eos = read_json(directory / file, missing_ok=True).get("eos_token_id")
        stops.update(token for token in (eos if isinstance(eos, list) else [eos]) if isinstance(token, int))
    if special.get("eos_token") in ids:
        stops.add(ids[special["eos_token"]])
    return stops
