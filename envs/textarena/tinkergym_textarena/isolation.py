"""Chance of its own for each game.

TextArena's games draw from Python's global generator and seed it on reset, so that two games in one process,
or a game and its host program, would disturb each other. Here the name `random` in TextArena's modules is
bound to a stand-in that passes each call on to the generator of the game that is running in this thread, and
to the real module when none is: then TextArena works for others as it always does.

Not the other way, swapping the global generator's state in and out around each call: another thread of the
host that draws at that moment would draw from the game's.
"""

from __future__ import annotations

import builtins
import random
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_generator: ContextVar[random.Random | None] = ContextVar("_generator", default=None)
_redirected: set[str] = set()
_seen: list[tuple[int, str]] = []
"""How many modules there were, and the newest of them, when they were last gone through."""


@contextmanager
def drawing_from(generator: random.Random) -> Iterator[None]:
    """Let games that run inside, in this thread, draw from `generator` and from nothing else."""
    token = _generator.set(generator)
    try:
        yield
    finally:
        _generator.reset(token)


def redirect_loaded_modules() -> None:
    """Put the stand-ins into those of TextArena's modules that have been imported; others keep theirs.

    Must be called after each import of a game, before the game is made. Going through all modules of a large
    program takes as long as a short episode, so it is done only when some have been imported since.
    """
    seen = (len(sys.modules), next(reversed(sys.modules)))
    if seen in _seen:
        return
    for name, module in list(sys.modules.items()):
        if name in _redirected or not name.startswith("textarena"):
            continue
        if vars(module).get("random") is random:
            vars(module)["random"] = _STAND_IN
        # Some games print what they do, into the output of whoever plays them.
        vars(module).setdefault("print", _print)
        _redirected.add(name)
    _seen[:] = [seen]


class _StandIn(types.ModuleType):
    """Python's `random` to TextArena."""

    def __getattr__(self, name: str) -> Any:
        generator = _generator.get()
        if generator is not None and hasattr(generator, name):
            return getattr(generator, name)
        return getattr(random, name)


_STAND_IN = _StandIn("random")


def _print(*values: object, **settings: Any) -> None:
    if _generator.get() is None:
        builtins.print(*values, **settings)
