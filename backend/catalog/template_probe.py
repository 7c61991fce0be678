"""Whether a chat template compiles and stays within its limits, found before any worker renders it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from tinkergym.agent.templates import ChatTemplate
from tinkergym.agent.turn_ends import find_stop_ids
from tinkergym.errors import TemplateError
from tinkergym.messages import assistant, system, user

_TOOL = {"name": "tool", "description": "A tool.", "parameters": {"type": "object", "properties": {}}}
_CALL = {"id": "callA1b2C", "type": "function", "function": {"name": "tool", "arguments": {"key": "value"}}}
_TURNS = [user("u"), assistant("a")]
_CONVERSATIONS: list[list[Any]] = [
    [user("u")],
    [system("s"), user("u")],
    [*_TURNS * 20, user("u")],
    [
        user("u"),
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        {"role": "tool", "content": "t"},
    ],
]


Probe = Callable[[str, Mapping[str, str], Mapping[str, int], Collection[int]], tuple[list[int], list[str]]]
"""`probe_template`, here or in another process."""


def probe_template(
    template: str, special_tokens: Mapping[str, str], specials: Mapping[str, int], named: Collection[int]
) -> tuple[list[int], list[str]]:
    """Compile a chat template, and render short conversations.

    A template may refuse some conversations; the renderer says which one it needs.

    Args:
        template: The template's source.
        special_tokens: `bos_token`, `eos_token`, ... as used by the template.
        specials: The ids of the tokenizer's special tokens by their text.
        named: Ids of tokens that end a turn by the model's configuration.

    Returns:
        The ids of tokens that end a turn, and the names of the template's own variables.

    Raises:
        TemplateError: It does not compile, or does too much work for one of the conversations.
    """
    plain = ChatTemplate(template, special_tokens)
    stop_ids = find_stop_ids(plain, special_tokens, specials, named)
    for compiled in (
        plain,
        ChatTemplate(template, special_tokens, [{"type": "function", "function": _TOOL}]),
    ):
        for conversation in _CONVERSATIONS:
            for opened in (True, False):
                if compiled.excess is None:
                    with suppress(TemplateError):
                        compiled.render(conversation, add_generation_prompt=opened)
        if compiled.excess is not None:
            raise compiled.excess
    return stop_ids, sorted(plain.names)
