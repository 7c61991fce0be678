"""The nano model's tokenizer: byte-level BPE, trained on the text of our own packs.

Every byte has a token, so any text round-trips. A model this small should not have to spell, so three kinds
of text are always one token: a cell of a board (`b3`), a digit, and a role line's end (`user` and newline).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = [END_OF_TEXT, TURN_START, TURN_END]
ROLE_LINES = ["system\n", "user\n", "assistant\n"]
CELLS = [f"{column}{row}" for column in "abcdefghi" for row in range(1, 10)]

PIECES = "|".join(
    [
        r"(?:system|user|assistant)\n",
        r" ?[a-i][1-9](?![0-9A-Za-z])",  # a cell, with the space before it
        r" [-+*/=](?: (?=[0-9]))?",  # an operator with its spaces, so that a sum is short
        r" ?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+",
        r"\n",
        r"\s+?(?=\s?\S)|\s+",
    ]
)
"""Merges never cross these pieces, which are tried in this order."""

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""Adding a message only appends text, so a ledger of sampled ids can grow by deltas."""

TOOL_TEMPLATE = (
    "{%- if tools %}"
    "{{- '<|im_start|>system\\n' }}"
    "{%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] + '\\n\\n' }}{%- endif %}"
    "{{- 'Tools:\\n' }}"
    "{%- for tool in tools %}{{- (tool['function'] or tool) | tojson + '\\n' }}{%- endfor %}"
    "{{- 'To use one, write:\\n<tool_call>\\n"
    '{"name": "the tool", "arguments": {"its": "arguments"}}'
    "\\n</tool_call><|im_end|>\\n' }}"
    "{%- endif %}"
    "{%- for message in messages %}"
    "{%- if not (tools and loop.first and message['role'] == 'system') %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') }}"
    "{%- for call in message['tool_calls'] or [] %}"
    "{%- if message['content'] or not loop.first %}{{- '\\n' }}{%- endif %}"
    "{{- '<tool_call>\\n{\"name\": ' + call['function']['name'] | tojson + ', \"arguments\": ' }}"
    "{{- call['function']['arguments'] | tojson + '}\\n</tool_call>' }}"
    "{%- endfor %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""The same text for a conversation without tools. Tools stand in the system message, as JSON, and calls are
written as most models write them."""


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train the merges on `texts`; cells and role lines are always merged."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*_must_be_whole(), *texts], trainer)
    return tokenizer


def write_tokenizer(
    tokenizer: Tokenizer, folder: Path, context_length: int, template: str = CHAT_TEMPLATE
) -> None:
    """Write the three files from which `transformers` and the renderer load the tokenizer."""
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": TURN_END,
            "pad_token": END_OF_TEXT,
            "model_max_length": context_length,
            "clean_up_tokenization_spaces": False,
        },
    )


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write readable JSON whose bytes only depend on `content`."""
    import json

    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _must_be_whole() -> list[str]:
    # Often enough that no merges of ordinary words come before these.
    often = 10_000
    return [line * often for line in ROLE_LINES] + [f"{cell} {cell} " * often for cell in CELLS]
