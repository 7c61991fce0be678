"""A rule is a code, a condition and a refusal; rules about the same part of a job are a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tinkergym.schema.refusals import Refusal, no_effect


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition that no job may meet, and the refusal of one that does.

    `{it}` in a text is what the condition was given, `{found}` what it found.
    """

    code: str
    condition: Callable[[Any], object]
    """Given a job or a part of it, returns what is wrong with it; anything false if nothing is."""
    field: str
    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class RuleTable:
    """Rules that are checked in order."""

    rules: tuple[Rule, ...]
    parts: Callable[[Any], Iterable[Any]] = lambda job: (job,)
    """Given a job, returns what the rules are asked about, one after the other: the job, parts of it that are
    computed once for all rules, or nothing if the job lacks what they are about."""


def refusal_of(job: object, tables: Iterable[RuleTable]) -> Refusal | None:
    """Return the first refusal of a job; None if it breaks no rule."""
    for table in tables:
        for it in table.parts(job):
            for rule in table.rules:
                if found := rule.condition(it):
                    texts = (rule.field, rule.reason, rule.hint)
                    field, reason, hint = (text.format(it=it, found=found) for text in texts)
                    return Refusal(field, reason, hint, rule.code)
    return None


def idle(field: str, is_idle: Callable[[Any], object], wanted: str) -> Rule:
    """Return the rule that refuses a setting which only takes effect with another one."""
    text = no_effect(field, wanted)
    return Rule(text.code, lambda job: is_idle(job) and job.is_chosen(field), field, text.reason, text.hint)


def first(found: Iterable[Any]) -> Any:
    """Return the first of what a condition found; None if there is nothing."""
    return next(iter(found), None)


def first_twice(names: list[str]) -> Any:
    """Return the first name that occurs again; None if all differ."""
    return first(name for name in names if names.count(name) > 1)
