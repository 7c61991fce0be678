"""Rewards made of named terms, and answers compared as mathematics."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinkergym.rubrics.group import GroupMember, score_members
    from tinkergym.rubrics.llm_judge import LLMJudge
    from tinkergym.rubrics.mathematics import math_equal
    from tinkergym.rubrics.rubric import Rubric, RubricResult, Term

__all__ = ["GroupMember", "LLMJudge", "Rubric", "RubricResult", "Term", "math_equal", "score_members"]

_HOMES = {
    "GroupMember": "group",
    "LLMJudge": "llm_judge",
    "Rubric": "rubric",
    "RubricResult": "rubric",
    "Term": "rubric",
    "math_equal": "mathematics",
    "score_members": "group",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tinkergym.rubrics' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"tinkergym.rubrics.{home}"), name)
    globals()[name] = value
    return value
