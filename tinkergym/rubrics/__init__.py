"""Rewards made of named terms, and answers compared as mathematics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinkergym.basics.extras import late_names

if TYPE_CHECKING:
    from tinkergym.rubrics.group import GroupMember, score_members
    from tinkergym.rubrics.llm_judge import LLMJudge
    from tinkergym.rubrics.mathematics import math_equal
    from tinkergym.rubrics.rubric import Rubric, RubricResult, Term

__all__ = ["GroupMember", "LLMJudge", "Rubric", "RubricResult", "Term", "math_equal", "score_members"]

__getattr__ = late_names(
    __name__,
    {
        "group": "GroupMember score_members",
        "llm_judge": "LLMJudge",
        "mathematics": "math_equal",
        "rubric": "Rubric RubricResult Term",
    },
)
