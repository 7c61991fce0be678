"""Chat templates: Jinja rendered in a sandbox, with the helpers that Hugging Face templates expect.

Works on text only. The dialect is that of `transformers`: trimmed blocks, `tojson` without HTML escapes,
`raise_exception`, `strftime_now`, loop controls and the `generation` tag.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from tinkergym.agent.template_allowance import bounded
from tinkergym.agent.template_sandbox import BoundedEnvironment
from tinkergym.errors import TemplateError
from tinkergym.messages import Message
from tinkergym.user_code.quoting import printable, quoted

_LONGEST_DATE = 200
"""Characters of a format; a date has at most 256 times as many."""


class ChatTemplate:
    """A compiled chat template."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str], tools: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Compile a template.

        Args:
            source: The Jinja source from a tokenizer's configuration.
            special_tokens: Names the template may use: `bos_token`, `eos_token`, ...
            tools: Functions to show to the model, as JSON Schema.

        Raises:
            TemplateError: It does not compile.
        """
        try:
            source.encode()  # Half a surrogate pair has no tokens.
            with bounded():
                self._template = _environment().from_string(source)
        # Deep nesting causes Python's own errors, not Jinja's.
        except Exception as error:
            raise TemplateError(
                f"the chat template does not compile: {printable(quoted(error))}",
                hint="use the model's own chat_template",
            ) from error
        self.source, self.special_tokens = source, dict(special_tokens)
        self.excess: TemplateError | None = None
        """Set once a rendering was ended because it did too much work: not a matter of these messages."""
        self._tools = list(tools)

    def render(
        self, messages: Sequence[Message] | Sequence[Mapping[str, Any]], *, add_generation_prompt: bool
    ) -> str:
        """Return the text of a conversation, opened for the next completion if `add_generation_prompt`.

        Raises:
            TemplateError: The template refuses these messages or fails on them.
        """
        try:
            with bounded(messages, self._tools):
                return self._template.render(
                    messages=messages,
                    add_generation_prompt=add_generation_prompt,
                    # Passed as in `transformers`: some templates distinguish None and undefined.
                    tools=self._tools or None,
                    documents=None,
                    **self.special_tokens,
                )
        # A template is foreign code: whatever it raises, the template is unusable.
        except Exception as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            refusal = TemplateError(
                f"the chat template fails on messages with the roles [{roles}]: "
                f"{printable(quoted(error)) or type(error).__name__}",
                hint="use a template that accepts them, or omit the system prompt",
            )
            if isinstance(error, OverflowError | RecursionError | MemoryError):
                self.excess = refusal
            raise refusal from error


class _Generation(Extension):
    """Accepts `{% generation %}...{% endgeneration %}` and renders its body unchanged."""

    tags = {"generation"}  # noqa: RUF012 - the name and type are Jinja's

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment() -> BoundedEnvironment:
    environment = BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.add_filter("tojson", _tojson)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(form: str) -> str:
    if len(form) > _LONGEST_DATE:  # A field may be as wide as the format asks.
        raise jinja2.TemplateError(f"it asks for a date in more than {_LONGEST_DATE} characters")
    return datetime.now().strftime(form)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
