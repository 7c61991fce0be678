"""How a job learns: RL algorithms, preference losses, and the optimizer."""

from tinkergym.schema.algorithms import GRPO, PPO, RLOO, DrGRPO, ReinforcePlusPlus, RunningBaseline
from tinkergym.schema.jobs import DPO, IPO, ORPO, Hinge, SimPO
from tinkergym.schema.optimizer import AdamW

__all__ = [
    "DPO",
    "GRPO",
    "IPO",
    "ORPO",
    "PPO",
    "RLOO",
    "AdamW",
    "DrGRPO",
    "Hinge",
    "ReinforcePlusPlus",
    "RunningBaseline",
    "SimPO",
]
