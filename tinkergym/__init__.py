"""Train language models in Gymnasium text environments, on workers that are somewhere else."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tinkergym.packs import find_packs

if TYPE_CHECKING:
    from tinkergym import spaces, wrappers
    from tinkergym.core import SingleTurnEnv, TextEnv
    from tinkergym.errors import IllegalMoveError, TinkerGymError
    from tinkergym.evaluation import Evaluation, evaluate
    from tinkergym.games.registry import make_game, register_game
    from tinkergym.games.text_game import TextGame
    from tinkergym.registration import make, register, registered
    from tinkergym.remote.client import Client
    from tinkergym.remote.job import Job
    from tinkergym.remote.policy import Policy
    from tinkergym.rubrics.rubric import Rubric
    from tinkergym.tasks import (
        GeneratorTasks,
        HuggingFaceTasks,
        JsonlTasks,
        ParquetTasks,
        SequenceTasks,
        TaskSource,
    )
    from tinkergym.tools.definition import tool
    from tinkergym.wire import FullParameters, Limits, LoRA, Sampling
    from tinkergym.wire_algorithms import GRPO, PPO, RLOO, DrGRPO, ReinforcePlusPlus
    from tinkergym.wire_jobs import DPO, IPO, ORPO, Hinge, SimPO

__version__ = "0.1.0"

__all__ = [
    "DPO",
    "GRPO",
    "IPO",
    "ORPO",
    "PPO",
    "RLOO",
    "Client",
    "DrGRPO",
    "Evaluation",
    "FullParameters",
    "GeneratorTasks",
    "Hinge",
    "HuggingFaceTasks",
    "IllegalMoveError",
    "Job",
    "JsonlTasks",
    "Limits",
    "LoRA",
    "ParquetTasks",
    "Policy",
    "ReinforcePlusPlus",
    "Rubric",
    "Sampling",
    "SequenceTasks",
    "SimPO",
    "SingleTurnEnv",
    "TaskSource",
    "TextEnv",
    "TextGame",
    "TinkerGymError",
    "evaluate",
    "find_packs",
    "make",
    "make_game",
    "register",
    "register_game",
    "registered",
    "spaces",
    "tool",
    "wrappers",
]

# Where each public name lives. They are imported on first use, so that a pack or an environment server that
# needs `TextEnv` pays neither for HTTP nor for the tokenizer.
_HOMES = {
    "Client": "tinkergym.remote.client",
    "DPO": "tinkergym.wire_jobs",
    "Hinge": "tinkergym.wire_jobs",
    "IPO": "tinkergym.wire_jobs",
    "ORPO": "tinkergym.wire_jobs",
    "SimPO": "tinkergym.wire_jobs",
    "Evaluation": "tinkergym.evaluation",
    "FullParameters": "tinkergym.wire",
    "DrGRPO": "tinkergym.wire_algorithms",
    "GRPO": "tinkergym.wire_algorithms",
    "PPO": "tinkergym.wire_algorithms",
    "RLOO": "tinkergym.wire_algorithms",
    "ReinforcePlusPlus": "tinkergym.wire_algorithms",
    "GeneratorTasks": "tinkergym.tasks",
    "HuggingFaceTasks": "tinkergym.tasks",
    "IllegalMoveError": "tinkergym.errors",
    "Job": "tinkergym.remote.job",
    "JsonlTasks": "tinkergym.tasks",
    "Limits": "tinkergym.wire",
    "LoRA": "tinkergym.wire",
    "ParquetTasks": "tinkergym.tasks",
    "Policy": "tinkergym.remote.policy",
    "Rubric": "tinkergym.rubrics.rubric",
    "Sampling": "tinkergym.wire",
    "SequenceTasks": "tinkergym.tasks",
    "SingleTurnEnv": "tinkergym.core",
    "TaskSource": "tinkergym.tasks",
    "TextEnv": "tinkergym.core",
    "TextGame": "tinkergym.games.text_game",
    "TinkerGymError": "tinkergym.errors",
    "evaluate": "tinkergym.evaluation",
    "make": "tinkergym.registration",
    "make_game": "tinkergym.games.registry",
    "register": "tinkergym.registration",
    "register_game": "tinkergym.games.registry",
    "registered": "tinkergym.registration",
    "tool": "tinkergym.tools.definition",
}
# Gymnasium loads no plugins, so the ids of installed packs are made known to it here.
find_packs()

_ROOMS = frozenset({"spaces", "wrappers"})


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"tinkergym.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tinkergym' has no attribute {name!r}{_known_otherwise(name)}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def _known_otherwise(name: str) -> str:
    """Say what an algorithm of other libraries is here; only a name like one pays for the import."""
    if not name.isupper():
        return ""
    from tinkergym.algorithm_names import what_it_is

    known = what_it_is(name)
    return f"; {known}" if known else ""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
