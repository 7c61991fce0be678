"""Chat templates of the families played by `python -m benchmarks templates`, each with a small tokenizer.

Real templates are loaded from the installed package `trl`. For families that it lacks there is a minimal one
of ours, with the same structure of turns.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from tinkergym.agent.turn_ends import find_stop_ids
from tinkergym.schema.views import RendererBundle
from tinkergym.testing import family_bundle

SHIPPED = {
    "Llama-3": ("llama3", "llama3_1", "llama3_2"),
    "Qwen 2.5": ("qwen2_5",),
    "Qwen 3": ("qwen3", "qwen3_instruct_2507"),
    "Qwen 3.5": ("qwen3_5_think", "qwen3_5_nothink"),
    "DeepSeek": ("deepseekv3", "deepseek_r1_distill"),
    "Gemma 1": ("gemma",),
    "Gemma 3": ("gemma3",),
    "Gemma 4": ("gemma4", "gemma4_v5"),
    "Phi": ("phi3", "phi3_5"),
    "gpt-oss": ("gptoss",),
    "GLM-4": ("glm4moe",),
}
"""The names of trl's template files by family."""

# Ours, with GLM-4's structure: only the token that opens the next turn ends an answer.
_GLM4 = r"""[gMASK]<sop>
{%- for message in messages %}
    {%- if message.role == "tool" %}{{- "<|observation|>" }}
    {%- elif message.role == "system" %}{{- "<|system|>" }}
    {%- elif message.role == "assistant" %}{{- "<|assistant|>" }}
    {%- else %}{{- "<|user|>" }}{% endif %}
    {{- "\n" + message.content }}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|assistant|>\n" }}{% endif %}"""

# Ours: only the newest messages are shown, after the system prompt.
_SLIDING = r"""
{%- set system, rest = "", messages %}
{%- if messages[0].role == "system" %}{% set system, rest = messages[0].content, messages[1:] %}{% endif %}
{%- if system %}{{- "<|im_start|>system\n" + system + "<|im_end|>\n" }}{% endif %}
{%- for message in rest[-7:] %}
    {{- "<|im_start|>" + message.role + "\n" + message.content + "<|im_end|>\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\n" }}{% endif %}"""

OURS = {
    "Mistral": {"mistral": family_bundle("mistral").chat_template},
    "GLM-4": {"glm4": _GLM4},
    "sliding window": {"sliding": _SLIDING},
}
"""Minimal templates by family."""

_SPECIAL = re.compile(
    r"<[|｜][^<>|｜ ]{1,40}[|｜]>|<\|[a-z_]+>|<[a-z_]+\|>|<(?:start|end)_of_turn>"
    r"|\[/?INST\]|</?s>|\[gMASK\]|<sop>"
)


def shipped_template(name: str) -> str | None:
    """Return a template file of the installed package `trl`, without importing it; None without it."""
    found = importlib.util.find_spec("trl")
    if found is None or found.origin is None:
        return None
    file = Path(found.origin).parent / "chat_templates" / f"{name}.jinja"
    return file.read_text(encoding="utf-8") if file.is_file() else None


def shipped_names() -> list[str]:
    """Return the names of trl's templates, without those that only mark answers for training."""
    found = importlib.util.find_spec("trl")
    folder = Path(found.origin).parent / "chat_templates" if found and found.origin else Path("missing")
    return sorted(path.stem for path in folder.glob("*.jinja") if not path.stem.endswith("_training"))


def families() -> dict[str, dict[str, str]]:
    """Return the templates of each family by their names; without `trl`, only ours."""
    found: dict[str, dict[str, str]] = {}
    for family, names in SHIPPED.items():
        for name in names:
            source = shipped_template(name)
            if source is not None:
                found.setdefault(family, {})[name] = source
    for family, templates in OURS.items():
        found.setdefault(family, {}).update(templates)
    return found


def template_bundle(name: str, source: str) -> RendererBundle:
    """Return a bundle with a template and a small byte-level tokenizer with its special tokens.

    As in many base models, the configuration only names the end of a document as a stop token.
    """
    base = family_bundle("qwen")
    names = {"bos_token": "<bos>", "eos_token": "<eos>"}
    texts = sorted({*_SPECIAL.findall(source), *names.values()})
    tokenizer = Tokenizer.from_str(base.tokenizer_json)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in texts])
    ids = {text: tokenizer.token_to_id(text) for text in texts}
    settings = {
        "model": name,
        "chat_template": source,
        "tokenizer_json": tokenizer.to_str(),
        "special_tokens": names,
        "stop_ids": find_stop_ids(source, names, ids, [ids["<eos>"]]),
        "context_length": 1_000_000,
    }
    return base.model_copy(update=settings)
