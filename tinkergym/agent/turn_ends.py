"""Turn ends: the special tokens at which generation must stop, found from a chat template.

Models name some of them in their configuration, but often not all: base models only name the end of a
document, and harmony's `<|end|>` ends a message inside a turn but not the turn itself.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tinkergym.agent.templates import ChatTemplate
from tinkergym.errors import TemplateError
from tinkergym.messages import Message, assistant, user

_ANSWER, _NEXT = "tinkergymAnswer7f3a", "tinkergymNext7f3a"


def find_stop_ids(
    template: str | ChatTemplate,
    special_tokens: Mapping[str, str],
    specials: Mapping[str, int],
    named: Collection[int],
) -> list[int]:
    """Return every token id that ends a turn, sorted.

    Args:
        template: The chat template, or its source.
        special_tokens: `bos_token`, `eos_token`, ... as used by the template.
        specials: The ids of the tokenizer's special tokens by their text.
        named: Ids that the model's configuration names.
    """
    stops = set(named)
    known = {text for text, index in specials.items() if index in stops}
    # The renderer reports an unusable template, with the reason.
    with contextlib.suppress(TemplateError):
        compiled = ChatTemplate(template, special_tokens) if isinstance(template, str) else template
        ends = turn_ends(compiled, specials, known)
        stops.update(specials[text] for text in ends)
    return sorted(stops)


def special_ids(tokenizer: Mapping[str, Any]) -> dict[str, int]:
    """Return the ids of special tokens by their text, from the content of a `tokenizer.json`."""
    added = tokenizer.get("added_tokens") or []
    return {token["content"]: int(token["id"]) for token in added if token.get("special", True)}


def turn_ends(template: ChatTemplate, specials: Collection[str], known: Collection[str] = ()) -> set[str]:
    """Return the special tokens that a template writes where the policy must stop.

    Args:
        template: The chat template.
        specials: The texts of all special tokens.
        known: Tokens that are known to end a turn. If a template ends turns with several tokens and one is
            known, the others are not returned.

    Raises:
        TemplateError: The template refuses a plain conversation.
    """
    if not specials:
        return set()
    pattern = re.compile("|".join(map(re.escape, sorted(specials, key=len, reverse=True))))
    last = pattern.findall(_after(template, []))
    asked = pattern.findall(_after(template, [user(_NEXT)]).partition(_NEXT)[0])
    shared = []
    for one, other in zip(last, asked, strict=False):
        if one != other:
            break
        shared.append(one)
    ends = _tool_call_end(template, pattern)
    if shared:
        # Written after every answer, such as `<|im_end|>`. Phi-3 adds `<|endoftext|>`, but only after the
        # last one.
        return ends | (set() if set(shared) & set(known) else {shared[-1]})
    if last:
        # Harmony writes `<|return|>` after the last answer, as the model does, and `<|end|>` after past ones.
        return ends | {last[0]}
    # GLM writes nothing: the policy stops by sampling the token that opens the next turn.
    return ends | set(asked[:1]) | set(_opening_of_tool_answer(template, pattern))


def _after(template: ChatTemplate, messages: Sequence[Message]) -> str:
    text = template.render([user("u"), assistant(_ANSWER), *messages], add_generation_prompt=False)
    return text.partition(_ANSWER)[2]


def _opening_of_tool_answer(template: ChatTemplate, pattern: re.Pattern[str]) -> list[str]:
    try:
        text = _after(template, [{"role": "tool", "content": _NEXT}])
    except TemplateError:
        return []
    before, found, _ = text.partition(_NEXT)
    return pattern.findall(before)[:1] if found else []


def _tool_call_end(template: ChatTemplate, pattern: re.Pattern[str]) -> set[str]:
    """Return the special token that ends a tool call, if the template writes such calls."""
    call = {"id": "callA1b2C", "type": "function", "function": {"name": "tool", "arguments": {"key": _NEXT}}}
    message: Any = {"role": "assistant", "content": "", "tool_calls": [call]}
    try:
        text = template.render([user("u"), message], add_generation_prompt=False).rstrip()
    except TemplateError:
        return set()
    _, found, after = text.rpartition(_NEXT)
    ends = pattern.findall(after)
    return {ends[-1]} if found and ends and after.endswith(ends[-1]) else set()
