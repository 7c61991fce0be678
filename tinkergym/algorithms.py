"""How a job learns: algorithms for episodes, and losses for pairs of answers."""

from tinkergym.schema.algorithms import GRPO, PPO, RLOO, DrGRPO, ReinforcePlusPlus
from tinkergym.schema.jobs import DPO, IPO, ORPO, Hinge, SimPO

__all__ = ["DPO", "GRPO", "IPO", "ORPO", "PPO", "RLOO", "DrGRPO", "Hinge", "ReinforcePlusPlus", "SimPO"]
