"""A Hugging Face tokenizer's renderer. `transformers` itself is not imported."""

from __future__ import annotations

from typing import Any

from tinkergym.agent.renderer import Renderer
from tinkergym.agent.templates import ChatTemplate
from tinkergym.agent.turn_ends import find_stop_ids
from tinkergym.errors import InvalidRequestError


def renderer_of(tokenizer: Any, *, context_length: int) -> Renderer:
    """Return the renderer of a fast tokenizer with a chat template, as loaded by `AutoTokenizer`.

    Args:
        tokenizer: A `PreTrainedTokenizerFast`.
        context_length: Most tokens of prompt and completion together.

    Raises:
        InvalidRequestError: It is a slow tokenizer, or has no chat template or no token that ends a
            completion.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    template, stop = getattr(tokenizer, "chat_template", None), getattr(tokenizer, "eos_token_id", None)
    if backend is None or not isinstance(template, str) or stop is None:
        raise InvalidRequestError(
            f"{type(tokenizer).__name__} is not a fast tokenizer with one chat template and an eos_token",
            hint="load it with transformers.AutoTokenizer, and set chat_template and eos_token if they are "
            "missing",
            field="tokenizer",
        )
    special = {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    added = backend.get_added_tokens_decoder()
    specials = {token.content: index for index, token in added.items() if token.special}
    return Renderer(
        tokenizer=backend,
        template=ChatTemplate(template, special),
        stop_ids=find_stop_ids(template, special, specials, [stop]),
        context_length=context_length,
    )
