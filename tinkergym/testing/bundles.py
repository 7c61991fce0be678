"""A renderer bundle without a model: one token per byte, and a ChatML template."""

from __future__ import annotations

import hashlib

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tinkergym.schema.views import RendererBundle

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_bundle(*, context_length: int = 1024, chat_template: str = CHATML) -> RendererBundle:
    """Return a bundle with a byte-level tokenizer; ids 0 to 255 are bytes in some order.

    `<|im_end|>` ends a completion.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)]
    )
    tokenizer_json = tokenizer.to_str()
    return RendererBundle(
        model="bytes",
        tokenizer_json=tokenizer_json,
        chat_template=chat_template,
        special_tokens={"eos_token": "<|im_end|>"},
        stop_ids=[tokenizer.token_to_id("<|im_end|>")],
        context_length=context_length,
        sha256=hashlib.sha256((tokenizer_json + chat_template).encode()).hexdigest(),
    )
