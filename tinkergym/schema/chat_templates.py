"""Chat templates that a job sets instead of its model's. Base models have none."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from typing import Annotated, Any

from pydantic import AfterValidator, Field, JsonValue

from tinkergym.schema.refusals import Refusal

MOST_CHARACTERS = 100_000
"""The longest template, in characters."""

PLAIN = (
    "{%- for message in messages -%}"
    "{{ message['role'] + ': ' + message['content'] }}"
    "{%- if message['role'] == 'assistant' -%}{{ eos_token }}{%- endif -%}{{ '\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ 'assistant: ' }}{%- endif -%}"
)
"""`role: content`, one per line; a completion ends with the model's own end-of-text token. For base models,
which have no tokens that begin and end turns."""

NAMED = {"plain": PLAIN}


def template_text(given: str) -> str | Refusal:
    """Return the template for a setting: its own text, or the named one."""
    if given in NAMED or not given:
        return NAMED.get(given, "")
    if "{{" not in given and "{%" not in given:
        return Refusal(
            "chat_template",
            f"is neither a Jinja template nor one of {', '.join(NAMED)}, but {given!r:.60}",
            "write its text, or pathlib.Path('chat_template.jinja') to read it from a file",
            "not_a_template",
        )
    return given


RESERVED_VARIABLES = frozenset(
    {
        *("messages", "tools", "add_generation_prompt", "strftime_now", "raise_exception"),
        *("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"),
    }
)
"""Names that chat templates read, but that have their own settings or come from the tokenizer."""

_MOST_VARIABLES = 32
_MOST_VARIABLE_CHARACTERS = 100_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def variables_fault(given: Mapping[str, Any]) -> Refusal | None:
    """Return what is wrong with template variables, whatever the template; None if nothing is."""
    field, way_out = "template_variables", "write {'enable_thinking': False}"
    for name in given:
        if name in RESERVED_VARIABLES:
            why = f"{name!r} is not a template variable: the renderer sets it"
            hint = "leave it out; template_date sets the date" if name == "strftime_now" else "leave it out"
            return Refusal(field, why, hint, "reserved_template_variable")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            return Refusal(
                field, f"{name!r:.80} is not a name that a template can read", way_out, "not_a_name"
            )
    try:
        size = len(json.dumps(dict(given), allow_nan=False, ensure_ascii=False).encode().decode())
    except (TypeError, ValueError, RecursionError):
        return Refusal(
            field, "a value is not JSON", "use text, numbers, booleans, lists or dicts", "not_json"
        )
    if len(given) > _MOST_VARIABLES or size > _MOST_VARIABLE_CHARACTERS:
        most = f"{_MOST_VARIABLES} variables of {_MOST_VARIABLE_CHARACTERS} characters together"
        return Refusal(field, f"has more than {most}", "put long texts into the messages", "too_many")
    return None


def template_sha256(source: str, variables: Mapping[str, Any], day: str) -> str:
    """Return the hash of a chat template with its variables and its date, which certificates name."""
    made_of = [source, dict(variables), day]
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()


def _checked_variables(given: dict[str, Any]) -> dict[str, Any]:
    if fault := variables_fault(given):
        raise replace(fault, field="").in_validator()
    return given


def day_fault(given: str) -> Refusal | None:
    """Return what is wrong with the date that a template writes; None if nothing is."""
    try:
        if not given or date.fromisoformat(given).isoformat() == given:
            return None
    except (TypeError, ValueError):
        pass
    what = f"is not a date: {given!r:.40}"
    return Refusal("template_date", what, "write it as 2026-11-29", "not_a_date")


def _checked_day(given: str) -> str:
    if fault := day_fault(given):
        raise replace(fault, field="").in_validator()
    return given


TemplateVariables = Annotated[dict[str, JsonValue], AfterValidator(_checked_variables)]
"""Values of names that a chat template reads, such as `enable_thinking` or `reasoning_effort`."""

TemplateDay = Annotated[str, Field(max_length=10), AfterValidator(_checked_day)]
"""The date that a chat template writes, such as `2026-11-29`; empty for today's, or where it writes none."""
