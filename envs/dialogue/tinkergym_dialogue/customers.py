"""What a simulated customer is told, and a script that plays one.

A script has its version in its name, which is part of a job's settings: it stays the same during a run. One
that behaves otherwise gets another number. So does a persona.
"""

from __future__ import annotations

import re

from tinkergym_dialogue.case import Case

MOST_CHARACTERS = 2000
"""Of one message."""

_BYE = re.compile(r"\b(?:good)?bye\b", re.IGNORECASE)


def says_bye(text: str) -> bool:
    """Whether a message ends a dialogue."""
    return _BYE.search(text) is not None


def persona_1(case: Case) -> str:
    """Return what a model that plays the customer is told."""
    both = " and ".join(f"a {item}" for item in case.items)
    shy = " Do not say at first which one it is; name it when you are asked." if case.vague else ""
    return (
        f"You are {case.customer}, a customer of a shop. You ordered {both}. You do not want the {case.item} "
        f"any more, and tell the shop's agent so in one short sentence.{shy} Say nothing else about "
        "yourself. When the agent has done it, or says goodbye, answer with the word bye."
    )


def customer_1(case: Case, heard: str | None, acted: bool) -> str:
    """Return what the scripted customer says.

    Args:
        case: What it is about.
        heard: What the agent said last; None at the beginning.
        acted: Whether the agent has changed an order.
    """
    if heard is None:
        return "I do not want it." if case.vague else f"I do not want the {case.item}."
    if acted or says_bye(heard):
        return "Thank you. Bye." if acted else "Bye."
    return f"The {case.item}." if "which" in heard.casefold() or "?" in heard else "What?"
