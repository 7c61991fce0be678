"""A separate random state for each game.

TextArena's games draw from Python's global generator and seed it on reset, so two games in one process, or a
game and its host program, would interfere. In TextArena's modules the name `random` is therefore bound to a
proxy that passes each call on to the generator of the game running in this thread, or to the real module if
there is none: TextArena then works for others as usual.

Swapping the global generator's state around each call would not work: another thread of the host program
could draw from the game's state.
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
"""The number of modules, and the newest one, at the last check."""


@contextmanager
def drawing_from(generator: random.Random) -> Iterator[None]:
    """Make games that run inside this context, in this thread, draw only from `generator`."""
    token = _generator.set(generator)
    try:
        yield
    finally:
        _generator.reset(token)


def redirect_loaded_modules() -> None:
    """Put the proxies into all imported TextArena modules.

    Call this after each import of a game, before the game is created. Checking all modules of a large program
    takes as long as a short episode, so it is only done if some have been imported since.
    """
    seen = (len(sys.modules), next(reversed(sys.modules)))
    if seen in _seen:
        return
    for name, module in list(sys.modules.items()):
        if name in _redirected or not name.startswith("textarena"):
            continue
        if vars(module).get("random") is random:
            vars(module)["random"] = _STAND_IN
        # Some games print to standard output.
        vars(module).setdefault("print", _print)
        _redirected.add(name)
    _seen[:] = [seen]


class _StandIn(types.ModuleType):
    """Python's `random` for TextArena."""

    def __getattr__(self, name: str) -> Any:
        generator = _generator.get()
        if generator is not None and hasattr(generator, name):
            return getattr(generator, name)
        return getattr(random, name)


_STAND_IN = _StandIn("random")


def _print(*values: object, **settings: Any) -> None:
    if _generator.get() is None:
        builtins.print(*values, **settings)
