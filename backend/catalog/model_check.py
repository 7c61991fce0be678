"""Whether a model can be trained and sampled, as far as its files show: checked before a job is accepted.

Without torch, and without running anything of the model. What only loading can show, such as every shape and
the values of a large model, is checked when a worker loads it, before it takes a job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from tokenizers import Tokenizer

from backend.catalog.models import read_json, require_weights
from backend.catalog.tensor_files import StoredTensor, first_not_finite, stored_tensors
from tinkergym.errors import InvalidRequestError, UnknownModelError
from tinkergym.user_code.quoting import quoted

MOST_SCANNED_BYTES = 1 << 30
"""Weights of larger models are checked for NaN by the worker that loads them, not by the gateway: a GiB takes
a second, and several from a cold disk."""

_WRITES_TEXT = re.compile(r"(ForCausalLM|LMHeadModel|WithLMHead|ForConditionalGeneration|GenerationDecoder)$")
"""How transformers ends the class names of models that predict the next token."""
_READS_BOTH_WAYS = frozenset(
    {
        *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "xmod"),
        *("megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roformer"),
        *("xlm-roberta", "xlm-roberta-xl"),
    }
)
"""Types whose attention is causal only if the configuration sets `is_decoder`."""
_EMBEDDING = re.compile(
    r"(^|\.)(embed_tokens|wte|tok_embeddings|embed_in|word_embeddings|tokens_embed|embeddings)\.weight$"
)
_LAYER = re.compile(r"(^|\.)(?:layers|h|blocks)\.(\d+)\.")
_NEEDED = "choose a decoder with a head that predicts the next token, such as Qwen 3 or Llama"


class _Text(BaseModel):
    """The fields read from a model's configuration; every family adds its own."""

    model_config = ConfigDict(extra="ignore", strict=True)

    model_type: str = ""
    vocab_size: int | None = None
    num_hidden_layers: int | None = None
    is_encoder_decoder: bool = False
    is_decoder: bool = False


class _Config(_Text):
    architectures: list[str] | None = None
    text_config: _Text | None = None

    @property
    def text(self) -> _Text:
        return self.text_config or self


def refuse_unfit(name: str, directory: Path, *, most_scanned_bytes: int | None = None) -> None:
    """Refuse a model that would fail, or not learn, once a worker has it.

    Args:
        name: The model's name in the request.
        directory: The folder of its files.
        most_scanned_bytes: Weights of larger models are not read; None reads all.

    Raises:
        UnknownModelError: Its configuration or its weights are broken or do not match.
        InvalidRequestError: It is complete, but cannot be trained, its tokenizer has more tokens than its
            vocabulary, or its weights are not finite.
    """
    settings = _read_config(name, directory)
    # First what no other file can fix.
    _refuse_other_kinds(name, settings)
    require_weights(name, directory)
    tensors = stored_tensors(directory)
    embedding = _embedding(tensors)
    _refuse_other_shapes(name, settings.text, tensors, embedding)
    _refuse_small_vocabulary(name, directory, embedding.shape[0] if embedding else settings.text.vocab_size)
    if broken := first_not_finite(tensors, most_bytes=most_scanned_bytes):
        raise InvalidRequestError(
            f"the weights of the model {name!r} contain NaN or infinity, in {broken!r}",
            hint="training had diverged: use an earlier checkpoint, or download it again",
            field="model",
        )


def _read_config(name: str, directory: Path) -> _Config:
    try:
        return _Config.model_validate(read_json(directory / "config.json"))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UnknownModelError(
            f"the config.json of the model {name!r} is wrong: {where}: {first['msg']}",
            hint="write it with save_pretrained, or use the model's original file",
            field="model",
        ) from error


def _refuse_other_kinds(name: str, config: _Config) -> None:
    named = config.architectures or []
    if named and not any(_WRITES_TEXT.search(architecture) for architecture in named):
        raise InvalidRequestError(
            f"the model {name!r} is a {quoted(named[0])}, which does not predict the next token",
            hint=_NEEDED,
            field="model",
        )
    if config.is_encoder_decoder:
        raise InvalidRequestError(
            f"the model {name!r} is an encoder-decoder (type {quoted(config.model_type)})",
            hint=_NEEDED,
            field="model",
        )
    if config.model_type in _READS_BOTH_WAYS and not config.is_decoder:
        raise InvalidRequestError(
            f"the model {name!r}, of type {quoted(config.model_type)}, is bidirectional: its config.json "
            f"does not set is_decoder",
            hint=_NEEDED,
            field="model",
        )


def _embedding(tensors: Mapping[str, StoredTensor]) -> StoredTensor | None:
    """Return the table of token embeddings, if it has a known name."""
    found = [t for name, t in tensors.items() if _EMBEDDING.search(name) and len(t.shape) == 2]
    return max(found, key=lambda tensor: tensor.shape[0], default=None)


def _refuse_other_shapes(
    name: str, config: _Text, tensors: Mapping[str, StoredTensor], embedding: StoredTensor | None
) -> None:
    rows = config.vocab_size
    if embedding is not None and rows is not None and embedding.shape[0] != rows:
        raise _other_weights(
            name, f"their token embeddings have {embedding.shape[0]} rows, but vocab_size is {rows}"
        )
    layers = {int(found[2]) for tensor in tensors if (found := _LAYER.search(tensor))}
    if config.num_hidden_layers is not None and layers and max(layers) + 1 < config.num_hidden_layers:
        raise _other_weights(
            name, f"they have {max(layers) + 1} layers, but num_hidden_layers is {config.num_hidden_layers}"
        )


def _other_weights(name: str, how: str) -> UnknownModelError:
    return UnknownModelError(
        f"the weights of the model {name!r} do not match its config.json: {how}",
        hint="use the config.json with which they were saved",
        field="model",
    )


def _refuse_small_vocabulary(name: str, directory: Path, rows: int | None) -> None:
    file = directory / "tokenizer.json"
    if not file.is_file():
        return  # `load_renderer_bundle` reports this; a worker does not need it.
    try:
        tokenizer: Any = Tokenizer.from_file(str(file))
    except Exception as error:  # The library has no error type of its own.
        raise UnknownModelError(
            f"the tokenizer.json of the model {name!r} cannot be read: {error}",
            hint="save its fast tokenizer next to the weights, with AutoTokenizer and save_pretrained",
            field="model",
        ) from error
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    token, largest = max(vocabulary.items(), key=lambda item: item[1], default=("", -1))
    if rows is not None and largest >= rows:
        raise InvalidRequestError(
            f"the tokenizer of the model {name!r} has ids up to {largest} ({quoted(token)}), but the model "
            f"has {rows} tokens, 0 to {rows - 1}",
            hint="use the tokenizer that belongs to the weights, or call model.resize_token_embeddings("
            f"{largest + 1}) and save it again",
            field="model",
        )
