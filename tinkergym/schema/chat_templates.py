"""Chat templates that a job sets instead of its model's. Base models have none."""

from __future__ import annotations

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
