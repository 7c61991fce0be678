"""Whether a model can be trained and sampled, as far as its files tell: asked before a job is accepted.

Without torch, and without running anything of the model. What only a load can tell, such as every shape and
the values of a large model, is looked at when a worker loads it, before it takes a job.
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
"""Weights of larger models are looked at for NaN by the worker that loads them, not by the gateway: a GiB
takes a second, and several from a cold disk."""

_WRITES_TEXT = re.compile(r"(ForCausalLM|LMHeadModel|WithLMHead|ForConditionalGeneration|GenerationDecoder)$")
"""How transformers ends the names of models that predict the next token."""
_READS_BOTH_WAYS = frozenset(
    {
        *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "xmod"),
        *("megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roformer"),
        *("xlm-roberta", "xlm-roberta-xl"),
    }
)
"""Types whose attention is causal only where the configuration says `is_decoder`."""
_EMBEDDING = re.compile(
    r"(^|\.)(embed_tokens|wte|tok_embeddings|embed_in|word_embeddings|tokens_embed|embeddings)\.weight$"
)
_LAYER = re.compile(r"(^|\.)(?:layers|h|blocks)\.(\d+)\.")
_NEEDED = "choose a decoder with a head that predicts the next token, such as Qwen 3 or Llama"


class _Text(BaseModel):
    """What is read of a model's configuration; every family adds its own to it."""

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
    """Refuse a model that would fail, or learn nothing, once a worker has it.

    Args:
        name: What the request calls it.
        directory: Where its files lie.
        most_scanned_bytes: Weights of larger models are not read; None reads all.

    Raises:
        UnknownModelError: Its configuration or its weights are broken or do not belong together.
        InvalidRequestError: It is whole, but not of a kind that can be trained, its tokenizer has more tokens
            than it knows, or its weights are not finite.
    """
    settings = _read_config(name, directory)
    # First what no other file can repair.
    _refuse_other_kinds(name, settings)
    require_weights(name, directory)
    tensors = stored_tensors(directory)
    embedding = _embedding(tensors)
    _refuse_other_shapes(name, settings.text, tensors, embedding)
    _refuse_small_vocabulary(name, directory, embedding.shape[0] if embedding else settings.text.vocab_size)
    if broken := first_not_finite(tensors, most_bytes=most_scanned_bytes):
        raise InvalidRequestError(
            f"the weights of the model {name!r} hold NaN or infinity, in {broken!r}",
            hint="whatever wrote it had diverged: take an earlier checkpoint, or download it again",
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
            hint="write it with save_pretrained, or take it from where the model came from",
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
            f"the model {name!r} is an encoder with a decoder (type {quoted(config.model_type)})",
            hint=_NEEDED,
            field="model",
        )
    if config.model_type in _READS_BOTH_WAYS and not config.is_decoder:
        raise InvalidRequestError(
            f"the model {name!r}, of type {quoted(config.model_type)}, reads in both directions: its "
            "config.json does not say is_decoder",
            hint=_NEEDED,
            field="model",
        )


def _embedding(tensors: Mapping[str, StoredTensor]) -> StoredTensor | None:
    """Return the table of token embeddings, if it goes by a name that is known."""
    found = [t for name, t in tensors.items() if _EMBEDDING.search(name) and len(t.shape) == 2]
    return max(found, key=lambda tensor: tensor.shape[0], default=None)


def _refuse_other_shapes(
    name: str, config: _Text, tensors: Mapping[str, StoredTensor], embedding: StoredTensor | None
) -> None:
    rows = config.vocab_size
    if embedding is not None and rows is not None and embedding.shape[0] != rows:
        raise _other_weights(
            name, f"their token embeddings have {embedding.shape[0]} rows, and vocab_size is {rows}"
        )
    layers = {int(found[2]) for tensor in tensors if (found := _LAYER.search(tensor))}
    if config.num_hidden_layers is not None and layers and max(layers) + 1 < config.num_hidden_layers:
        raise _other_weights(
            name, f"they have {max(layers) + 1} layers, and num_hidden_layers is {config.num_hidden_layers}"
        )


def _other_weights(name: str, how: str) -> UnknownModelError:
    return UnknownModelError(
        f"the weights of the model {name!r} are not those of its config.json: {how}",
        hint="put the config.json beside them that they were saved with",
        field="model",
    )


def _refuse_small_vocabulary(name: str, directory: Path, rows: int | None) -> None:
    file = directory / "tokenizer.json"
    if not file.is_file():
        return  # `load_renderer_bundle` says so; a worker can do without
    try:
        tokenizer: Any = Tokenizer.from_file(str(file))
    except Exception as error:  # the library has no type of its own
        raise UnknownModelError(
            f"the tokenizer.json of the model {name!r} cannot be read: {error}",
            hint="save its fast tokenizer beside the weights, with AutoTokenizer and save_pretrained",
            field="model",
        ) from error
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    token, largest = max(vocabulary.items(), key=lambda item: item[1], default=("", -1))
    if rows is not None and largest >= rows:
        raise InvalidRequestError(
            f"the tokenizer of the model {name!r} has ids up to {largest} ({quoted(token)}), and the "
            f"model knows {rows} tokens, 0 to {rows - 1}",
            hint="use the tokenizer that belongs to the weights, or call model.resize_token_embeddings("
            f"{largest + 1}) and save it again",
            field="model",
        )
