"""Train language models in Gymnasium text environments, with a training service that may run elsewhere."""

from __future__ import annotations

import difflib
import importlib
import sys

if sys.version_info < (3, 11):  # noqa: UP036 - a checkout is not installed, so pip did not look.
    _old = "tinkergym needs Python 3.11 or later, and this is {}.{} ({})".format(
        *sys.version_info[:2], sys.executable
    )
    raise SystemExit(_old) if sys.argv[:1] == ["-m"] else ImportError(_old)

from typing import TYPE_CHECKING, Any

from tinkergym.registration import packs
from tinkergym.schema.versions import __version__ as __version__

if TYPE_CHECKING:
    from tinkergym import algorithms, errors, losses, opponents, spaces, tasks, wrappers
    from tinkergym.algorithms import GRPO
    from tinkergym.core import SingleTurnEnv, TextEnv
    from tinkergym.errors import TinkerGymError
    from tinkergym.evaluation.evaluate import Evaluation, evaluate
    from tinkergym.games.text_game import TextGame
    from tinkergym.registration.environments import make, register
    from tinkergym.registration.games import make_game, register_game
    from tinkergym.remote.client import Client
    from tinkergym.remote.job import Job
    from tinkergym.remote.policy import Policy
    from tinkergym.rubrics.rubric import Rubric
    from tinkergym.schema.evaluate_every import EvaluateEvery
    from tinkergym.schema.jobs.parts import Budget, FullParameters, Limits, LoRA, Sampling
    from tinkergym.schema.jobs.seats import Train
    from tinkergym.tools.definition import tool

__all__ = [
    "GRPO",
    "Budget",
    "Client",
    "EvaluateEvery",
    "Evaluation",
    "FullParameters",
    "Job",
    "Limits",
    "LoRA",
    "Policy",
    "Rubric",
    "Sampling",
    "SingleTurnEnv",
    "TextEnv",
    "TextGame",
    "TinkerGymError",
    "Train",
    "algorithms",
    "errors",
    "evaluate",
    "losses",
    "make",
    "make_game",
    "opponents",
    "register",
    "register_game",
    "spaces",
    "tasks",
    "tool",
    "wrappers",
]

# Where each public name lives. They are imported on first use, so that a pack or an environment server that
# needs `TextEnv` pays neither for HTTP nor for the tokenizer.
_HOMES = {
    "Budget": "tinkergym.schema.jobs.parts",
    "Client": "tinkergym.remote.client",
    "EvaluateEvery": "tinkergym.schema.evaluate_every",
    "Evaluation": "tinkergym.evaluation.evaluate",
    "FullParameters": "tinkergym.schema.jobs.parts",
    "GRPO": "tinkergym.algorithms",
    "Job": "tinkergym.remote.job",
    "Limits": "tinkergym.schema.jobs.parts",
    "LoRA": "tinkergym.schema.jobs.parts",
    "Policy": "tinkergym.remote.policy",
    "Rubric": "tinkergym.rubrics.rubric",
    "Sampling": "tinkergym.schema.jobs.parts",
    "SingleTurnEnv": "tinkergym.core",
    "TextEnv": "tinkergym.core",
    "TextGame": "tinkergym.games.text_game",
    "TinkerGymError": "tinkergym.errors",
    "Train": "tinkergym.schema.jobs.seats",
    "evaluate": "tinkergym.evaluation.evaluate",
    "make": "tinkergym.registration.environments",
    "make_game": "tinkergym.registration.games",
    "register": "tinkergym.registration.environments",
    "register_game": "tinkergym.registration.games",
    "tool": "tinkergym.tools.definition",
}
# Gymnasium loads no plugins, so the ids of installed packs are made known to it here.
packs.find_packs()

_ROOMS = frozenset({"algorithms", "datasets", "errors", "losses", "opponents", "spaces", "tasks", "wrappers"})


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
    """Say which name was meant."""
    if name in ("attach", "distill", "policy", "preference", "sft", "train", "train_agent"):
        return f"; it is a method of a client: tinkergym.Client().{name}(...)"
    folded = {public.lower(): public for public in __all__}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.75)
    return f"; did you mean {folded[close[0]]}?" if close else ""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
