"""What a tokenizer writes around a document, found from its own post-processor.

Naming a `bos_token` is not enough: many tokenizers name one and never write it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from tokenizers import Tokenizer, processors

from tinkergym.errors import TemplateError
from tinkergym.schema.chat_templates import PLAIN
from tinkergym.schema.views import RendererBundle

_TEXT = "a"


def tokenizer_of(bundle: RendererBundle) -> Tokenizer:
    """Return a model's tokenizer; `add_bos_token` in its settings replaces its post-processor.

    Raises:
        TemplateError: It cannot be read.
    """
    try:
        tokenizer = Tokenizer.from_str(bundle.tokenizer_json)
    except Exception as error:  # tokenizers raises plain Exception.
        raise TemplateError(f"the tokenizer of {bundle.model} cannot be read: {error}") from error
    if bundle.add_bos_token is not None:
        token = bundle.special_tokens.get("bos_token", "")
        index = tokenizer.token_to_id(token)
        adds = bundle.add_bos_token and index is not None
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[token, "$A"] if adds else ["$A"], special_tokens=[(token, index)] if adds else []
        )
    return tokenizer


def template_text_of(bundle: RendererBundle, tokenizer: Tokenizer) -> str:
    """Return a model's chat template; the plain one begins as the tokenizer's documents do."""
    if bundle.chat_template != PLAIN:
        return bundle.chat_template
    begin, _ = document_marks(tokenizer)
    written = "".join(str(tokenizer.id_to_token(token)) for token in begin)
    return f"{{{{- {json.dumps(written, ensure_ascii=False)} -}}}}{PLAIN}" if written else PLAIN


def document_marks(tokenizer: Tokenizer) -> tuple[Sequence[int], Sequence[int]]:
    """Return the ids that the tokenizer's post-processor writes before a text and after it."""
    whole = list(tokenizer.encode(_TEXT).ids)
    own = list(tokenizer.encode(_TEXT, add_special_tokens=False).ids)
    begin = next((n for n in range(len(whole)) if whole[n : n + len(own)] == own), 0)
    return whole[:begin], whole[begin + len(own) :]
