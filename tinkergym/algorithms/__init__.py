"""How a job learns from episodes: one file per RL algorithm, and the optimizer."""

from __future__ import annotations

from typing import Any

from tinkergym.algorithms.grpo import GRPO, DrGRPO
from tinkergym.algorithms.ppo import PPO
from tinkergym.algorithms.reinforce_plus_plus import ReinforcePlusPlus
from tinkergym.algorithms.rloo import RLOO
from tinkergym.algorithms.running_baseline import RunningBaseline
from tinkergym.policy_losses import LossTokens
from tinkergym.schema.optimizer import AdamW
from tinkergym.schema.policy_gradient import PolicyGradient
from tinkergym.schema.refusals import Refusal
from tinkergym.trajectory.outcomes import Credits, Outcome, StepOutcomes

__all__ = [
    "GRPO",
    "PPO",
    "RLOO",
    "AdamW",
    "Credits",
    "DrGRPO",
    "LossTokens",
    "Outcome",
    "PolicyGradient",
    "Refusal",
    "ReinforcePlusPlus",
    "RunningBaseline",
    "StepOutcomes",
]


def __getattr__(name: str) -> Any:
    from tinkergym.schema.algorithm_registry import BUILT_IN

    # The imports above are for editors: a file in this folder needs none.
    if found := next((one for one in BUILT_IN.values() if one.__name__ == name), None):
        return found
    raise AttributeError(f"module 'tinkergym.algorithms' has no attribute {name!r}")
