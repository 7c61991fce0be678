"""What others call an algorithm and what is none here: a loss, or settings of one."""

from __future__ import annotations

from typing import get_args

from tinkergym.wire_algorithms import PolicyGradient

DAPO = "DAPO"


def what_it_is(name: str) -> str:
    """Say what a name of an algorithm that there is not stands for here; empty if nothing is known of it.

    Args:
        name: As somebody wrote it: `gspo`, `CISPO`, `DAPO`.
    """
    word = name.lower()
    if word in get_args(PolicyGradient.model_fields["loss"].annotation):
        return f"that is a loss: algorithm.loss={word!r}, in a script tg.GRPO(loss={word!r})"
    if word == DAPO.lower():
        return (
            "that is tg.GRPO(clip_high=0.28, dynamic_sampling_rounds=3, ...): see DAPO's additions in "
            "docs/algorithms.md"
        )
    return ""
