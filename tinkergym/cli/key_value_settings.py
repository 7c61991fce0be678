"""Parse `key=value` on the command line into nested settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from tinkergym.errors import InvalidRequestError

VARIANTS = {"algorithm": "name", "adapter": "kind", "loss": "name"}
"""Sections of a job with several variants, and the setting that says which: `algorithm=rloo` is short for
`algorithm.name=rloo`."""


_MOST_NESTED = 50


def parse_settings(pairs: Iterable[str], variants: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Parse `key=value` pairs; dots lead into sections: `algorithm.group_size=4`.

    Values are parsed as JSON if possible (numbers, true, null, lists), else taken as text.

    Raises:
        InvalidRequestError: A pair is not `key=value`, or a section is also given a value.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        value = _value(text, pair)
        if key in (variants or {}) and not isinstance(value, dict):
            key = f"{key}.{(variants or {})[key]}"
        if not equals or not all(key.split(".")):
            raise InvalidRequestError(
                f"{pair!r:.80} is not a valid setting", hint="write it as key=value", field="--set"
            )
        if key.count(".") >= _MOST_NESTED:
            raise _nested(pair)
        _put(settings, key, value)
    return settings


def job_settings(
    spec: type[BaseModel], arguments: Sequence[str], options: Mapping[str, Any], pairs: Sequence[str]
) -> dict[str, Any]:
    """Combine what a command line says about a job.

    Args:
        spec: The settings of its kind.
        arguments: The names of positional arguments.
        options: The options that were given, by the dotted name of their setting.
        pairs: The `--set` pairs.

    Raises:
        InvalidRequestError: A pair is not a valid setting, or repeats an option.
    """
    settings, given = parse_settings(pairs, VARIANTS), dict[str, Any]()
    for name, value in options.items():
        _put(given, name, value)
    said = [*arguments, *_dotted(given)]
    for name in _dotted(settings):
        # Check prefixes too: otherwise one of the two would win silently.
        if any(f"{name}.".startswith(f"{other}.") or f"{other}.".startswith(f"{name}.") for other in said):
            raise InvalidRequestError(
                f"{name} is given twice, by its option or argument and by --set",
                hint="give it once",
                field="--set",
            )
    for name, value in options.items():
        _put(settings, name, value)
    for section, inner in VARIANTS.items():
        chosen = settings.get(section)
        if section in spec.model_fields and isinstance(chosen, dict) and inner not in chosen:
            usual = spec.model_fields[section].get_default(call_default_factory=True)
            chosen[inner] = getattr(usual, inner)
    return settings


def _put(settings: dict[str, Any], key: str, value: Any) -> None:
    """Set a setting by its dotted name; a section is merged with what is there."""
    *sections, name = key.split(".")
    for part in sections:
        inner = settings.setdefault(part, {})
        if not isinstance(inner, dict):
            raise _both(part)
        settings = inner
    there = settings.get(name)
    if isinstance(there, dict) and isinstance(value, dict):
        for part, below in value.items():
            _put(there, part, below)
    elif isinstance(there, dict):
        raise _both(name)
    else:
        settings[name] = value


def _both(name: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{name!r} is given both a value and nested settings", hint="give one of them", field="--set"
    )


def _dotted(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    names: list[str] = []
    for name, value in settings.items():
        # Empty sections are left out.
        names += _dotted(value, f"{prefix}{name}.") if isinstance(value, dict) else [prefix + name]
    return names


def _value(text: str, pair: str) -> Any:
    try:
        value = json.loads(text)
        _bound(value)
    except ValueError:
        return text
    except RecursionError:
        raise _nested(pair) from None
    return value


def _bound(value: Any, left: int = _MOST_NESTED) -> None:
    """Raise `RecursionError` for a value that is nested too deeply."""
    if not left:
        raise RecursionError
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _bound(inner, left - 1)


def _nested(pair: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{pair:.80} ... is nested more than {_MOST_NESTED} levels deep",
        hint="use fewer levels",
        field="--set",
    )
