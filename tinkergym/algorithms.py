"""How a job learns from episodes: RL algorithms, and the optimizer."""

from typing import Any

from tinkergym.schema.algorithms import GRPO, PPO, RLOO, DrGRPO, ReinforcePlusPlus, RunningBaseline
from tinkergym.schema.optimizer import AdamW

__all__ = ["GRPO", "PPO", "RLOO", "AdamW", "DrGRPO", "ReinforcePlusPlus", "RunningBaseline"]


def __getattr__(name: str) -> Any:
    moved = "; it is now tinkergym.losses." + name if name in ("DPO", "Hinge", "IPO", "ORPO", "SimPO") else ""
    raise AttributeError(f"module 'tinkergym.algorithms' has no attribute {name!r}{moved}")
