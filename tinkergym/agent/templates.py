"""Chat templates: Jinja rendered in a sandbox, with the helpers that Hugging Face templates expect.

Works on text only. The dialect is that of `transformers`: trimmed blocks, `tojson` without HTML escapes,
`raise_exception`, `strftime_now`, loop controls and the `generation` tag.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from tinkergym.agent.template_allowance import bounded
from tinkergym.agent.template_sandbox import BoundedEnvironment
from tinkergym.agent.template_variables import clock_at, names_read, refuse_unknown, writes_date
from tinkergym.errors import TemplateError
from tinkergym.messages import Message
from tinkergym.user_code.quoting import printable, quoted


class ChatTemplate:
    """A compiled chat template."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
        day: str = "",
    ) -> None:
        """Compile a template.

        Args:
            source: The Jinja source from a tokenizer's configuration.
            special_tokens: Names the template may use: `bos_token`, `eos_token`, ...
            tools: Functions to show to the model, as JSON Schema.
            variables: Other names that the template reads, such as `enable_thinking`, with their values.
            day: The date that it writes, such as `2026-11-29`. Empty is today's, also if it is rendered
                tomorrow.

        Raises:
            TemplateError: It does not compile, or does not use one of `variables`.
        """
        try:
            source.encode()  # Half a surrogate pair has no tokens.
            with bounded():
                self._template = _compiled(source)
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
        self.variables = dict(variables or {})
        """Values of names that only this template knows."""
        self.day = day or date.today().isoformat()
        """The date that it writes."""
        self._given = {
            # Passed as in `transformers`: some templates distinguish None and undefined.
            "tools": self._tools or None,
            "documents": None,
            "strftime_now": clock_at(self.day),
            **self.special_tokens,
            **self.variables,
        }
        if self.variables:
            refuse_unknown(self.variables, self.names)

    @property
    def names(self) -> frozenset[str]:
        """The names that the template reads besides those of the renderer."""
        with bounded():
            return names_read(_environment(), self.source)

    def with_changes(
        self,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any],
        day: str = "",
    ) -> ChatTemplate:
        """Return this template with other variables, other tools unless they are None, and another date.

        Raises:
            TemplateError: It does not use one of the variables, or it writes no date.
        """
        if day and not writes_date(self.source):
            raise TemplateError(
                "the chat template writes no date",
                hint="leave template_date out; in a dataset, ignore=['template_date']",
                field="template_date",
            )
        shown = self._tools if tools is None else tools
        return ChatTemplate(self.source, self.special_tokens, shown, variables, day or self.day)

    def render(
        self, messages: Sequence[Message] | Sequence[Mapping[str, Any]], *, add_generation_prompt: bool
    ) -> str:
        """Return the text of a conversation, opened for the next completion if `add_generation_prompt`.

        Raises:
            TemplateError: The template refuses these messages or fails on them.
        """
        try:
            with bounded(messages, [self._tools, self.variables]):
                return self._template.render(
                    self._given, messages=messages, add_generation_prompt=add_generation_prompt
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
    return environment


@lru_cache(maxsize=32)
def _compiled(source: str) -> jinja2.Template:
    """Compile a source once for all renderers of it, whatever tools and variables they show."""
    return _environment().from_string(source)


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


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
