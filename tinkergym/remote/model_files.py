"""A model's tokenizer and chat template by name: a local directory, or a model of the service.

Reads only JSON and text; needs neither weights nor torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinkergym.agent.turn_ends import find_stop_ids, special_ids
from tinkergym.errors import InvalidRequestError, ServiceUnreachableError
from tinkergym.remote import discovery
from tinkergym.remote.api import Api
from tinkergym.remote.transport import Connection
from tinkergym.schema.views import RendererBundle

_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
_UNKNOWN_CONTEXT = 1_000_000


def find_bundle(name: str) -> RendererBundle:
    """Return what turns messages into a model's token ids.

    Args:
        name: A directory with `tokenizer.json` and a chat template, or a model that the service knows.

    Raises:
        InvalidRequestError: The directory lacks a file.
        TinkerGymError: The service does not respond or does not know the model.
    """
    directory = Path(name).expanduser()
    if directory.is_dir():
        return read_bundle(directory)

    try:
        address = discovery.find()
        # No retries: a user at a terminal wants to know at once that no service responds.
        connection = Connection(address.url, token=address.api_key, patience_seconds=0.0)
        with contextlib.closing(connection):
            return Api(connection).renderer(name)
    except ServiceUnreachableError as error:
        raise InvalidRequestError(
            f"{name!r} is not a directory, and no service responds that could have such a model",
            hint="use a directory with tokenizer.json, or start the service: tinkergym serve",
        ) from error


def read_bundle(directory: Path) -> RendererBundle:
    """Read a directory in the format of Hugging Face tokenizers.

    Raises:
        InvalidRequestError: `tokenizer.json`, the chat template or the token that ends a completion is
            missing.
    """
    file = directory / "tokenizer.json"
    if not file.is_file():
        raise InvalidRequestError(
            f"{directory} has no tokenizer.json",
            hint="save the model's fast tokenizer to it with save_pretrained",
        )
    tokenizer_json = file.read_text(encoding="utf-8")
    settings = _json(directory / "tokenizer_config.json")
    template = _template(directory, settings)
    special = {key: text for key in _SPECIAL_TOKENS if (text := _text(settings.get(key)))}
    stop_ids = _stop_ids(directory, json.loads(tokenizer_json), template, special)
    return RendererBundle(
        model=directory.name or str(directory),
        tokenizer_json=tokenizer_json,
        chat_template=template,
        special_tokens=special,
        add_bos_token=given if isinstance(given := settings.get("add_bos_token"), bool) else None,
        stop_ids=stop_ids,
        context_length=int(
            _json(directory / "config.json").get("max_position_embeddings") or _UNKNOWN_CONTEXT
        ),
        sha256=hashlib.sha256((tokenizer_json + template).encode(errors="replace")).hexdigest(),
    )


def _template(directory: Path, settings: Mapping[str, Any]) -> str:
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    found = settings.get("chat_template")
    if isinstance(found, list):  # Some models have several, by name.
        found = next((entry["template"] for entry in found if entry.get("name") == "default"), None)
    if not isinstance(found, str):
        raise InvalidRequestError(
            f"{directory} has no chat template",
            hint="add chat_template.jinja, or set chat_template in tokenizer_config.json",
        )
    return found


def _stop_ids(
    directory: Path, tokenizer: Mapping[str, Any], template: str, special: Mapping[str, str]
) -> list[int]:
    # Imported here, because users of this module's other functions do not need templates.

    ids = {entry["content"]: int(entry["id"]) for entry in tokenizer.get("added_tokens", [])}
    named = _json(directory / "generation_config.json").get("eos_token_id")
    stops = {named} if isinstance(named, int) else set(named or [])
    stops |= {ids[end] for end in [special.get("eos_token", "")] if end in ids}
    found = find_stop_ids(template, special, special_ids(tokenizer), stops)
    if not found:
        raise InvalidRequestError(
            f"{directory} does not define a token that ends a completion",
            hint="set eos_token in tokenizer_config.json, or eos_token_id in generation_config.json",
        )
    return found


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidRequestError(f"{file} is not valid JSON: {error}") from error
    return content if isinstance(content, dict) else {}


def _text(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")
