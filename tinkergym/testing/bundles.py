"""Renderer bundles without a model: one token per byte, and those of four families of chat templates.

For tests, also of what must hold for any model. The templates of the families are written for this project
after the behaviour of such templates, not copied: role markers, trimming, the place of the system prompt, and
what is dropped from the past.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

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


@dataclass(frozen=True, slots=True)
class Family:
    """How one family of models renders conversations."""

    template: str
    special_tokens: tuple[str, ...]
    stop: str
    """The special token that ends a completion."""
    bos: str = ""


FAMILIES: dict[str, Family] = {
    # Reasoning is kept only in answers after the last question. A default system prompt; tool results are
    # user messages.
    "qwen": Family(
        r"""
{%- set last = messages | selectattr("role", "equalto", "user") | list | length %}
{%- if messages[0].role != "system" %}{{- "<|im_start|>system\nYou are helpful.<|im_end|>\n" }}{% endif %}
{%- set seen = namespace(questions=0) %}
{%- for message in messages %}
    {%- if message.role == "user" %}{% set seen.questions = seen.questions + 1 %}{% endif %}
    {%- set content = message.content %}
    {%- if message.role == "assistant" and seen.questions < last %}
        {%- set content = content.split("</think>")[-1].lstrip("\n") %}
    {%- endif %}
    {%- if message.role == "tool" %}
        {{- "<|im_start|>user\n<tool_response>\n" + content + "\n</tool_response><|im_end|>\n" }}
    {%- else %}
        {{- "<|im_start|>" + message.role + "\n" + content + "<|im_end|>\n" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\n" }}{% endif %}""",
        ("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
        "<|im_end|>",
    ),
    # A token that begins the text, headers between special tokens, and everything trimmed.
    "llama": Family(
        r"""
{{- bos_token }}
{%- for message in messages %}
    {%- set role = "ipython" if message.role == "tool" else message.role %}
    {{- "<|start_header_id|>" + role + "<|end_header_id|>\n\n" + message.content | trim + "<|eot_id|>" }}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|start_header_id|>assistant<|end_header_id|>\n\n" }}{% endif %}""",
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|eot_id|>",
        "<|begin_of_text|>",
    ),
    # The system prompt is always in the newest question, so the past is rewritten in each turn.
    "mistral": Family(
        r"""
{%- if messages[0].role == "system" %}
    {%- set system, rest = messages[0].content, messages[1:] %}
{%- else %}
    {%- set system, rest = "", messages %}
{%- endif %}
{{- bos_token }}
{%- for message in rest %}
    {%- if (message.role == "assistant") != (loop.index0 % 2 == 1) %}
        {{- raise_exception("user and assistant take turns, after an optional system message") }}
    {%- endif %}
    {%- if message.role == "assistant" %}
        {{- " " + message.content | trim + eos_token }}
    {%- elif loop.index0 + 2 > rest | length and system %}
        {{- "[INST] " + system + "\n\n" + message.content + "[/INST]" }}
    {%- else %}
        {{- "[INST] " + message.content + "[/INST]" }}
    {%- endif %}
{%- endfor %}""",
        ("<s>", "</s>", "[INST]", "[/INST]"),
        "</s>",
        "<s>",
    ),
    # No system role; the policy is called model, and everything is trimmed.
    "gemma": Family(
        r"""
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == "system" %}{{ raise_exception("there is no system role") }}{% endif %}
    {%- if (message.role == "assistant") != (loop.index0 % 2 == 1) %}
        {{- raise_exception("user and assistant take turns") }}
    {%- endif %}
    {%- set role = "model" if message.role == "assistant" else "user" %}
    {{- "<start_of_turn>" + role + "\n" + message.content | trim + "<end_of_turn>\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<start_of_turn>model\n" }}{% endif %}""",
        ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        "<end_of_turn>",
        "<bos>",
    ),
}
"""Families by name. `qwen` drops earlier reasoning and `mistral` moves the system prompt: they rewrite the
past."""

_TEXT = (
    "the move is a1, b2 or c3. what is 12 + 34? <think>\nlet me think.\n</think>\n\nthe answer is 46. "
    "you win, you lose, your turn: pull arm 0, arm 1. reward, board, empty, row and column, illegal move. "
)
"""Training text for the merges: enough that a text can be tokenized in several ways."""

# Words with the space before them, numbers by digits, trailing newlines separate: as in current byte-level
# tokenizers, so that a text's tokens depend on what follows it.
_PIECES = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def family_bundle(name: str, *, context_length: int = 1024) -> RendererBundle:
    """Return a bundle in the style of a model family, with a small byte-level BPE tokenizer.

    Args:
        name: One of `FAMILIES`.
        context_length: Most tokens of prompt and completion together.
    """
    family = FAMILIES[name]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in family.special_tokens])
    if family.bos:  # As these models' tokenizers begin documents.
        begin = (family.bos, tokenizer.token_to_id(family.bos))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[family.bos, "$A"], special_tokens=[begin]
        )
    tokenizer_json = tokenizer.to_str()
    return RendererBundle(
        model=name,
        tokenizer_json=tokenizer_json,
        chat_template=family.template,
        special_tokens={"bos_token": family.bos, "eos_token": family.stop},
        stop_ids=[tokenizer.token_to_id(family.stop)],
        context_length=context_length,
        sha256=hashlib.sha256((tokenizer_json + family.template).encode()).hexdigest(),
    )
