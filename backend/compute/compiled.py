"""Functions of tensors that run from end to end without Python.

After each of torch's operations Python takes its lock again, and waits for it wherever another thread is
busy: a forward of a small model beside a thread that never rests took ten times as long. `torch.jit.script`
compiles a function, with all that it calls, into one operation that needs the lock once, at its end. (torch
would rather have `torch.compile`, and calls this deprecated; but that needs a C++ compiler on the user's
machine.)

What is compiled is written in the part of Python that `torch.jit` knows, runs as it is where it cannot be
compiled, and gives the same bits either way. Named tuples that it takes must be declared in modules without
`from __future__ import annotations`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

_log = logging.getLogger(__name__)
_Function = TypeVar("_Function", bound=Callable[..., Any])
_lock = threading.Lock()
_known: dict[Callable[..., Any], Callable[..., Any]] = {}


def compiled(function: _Function) -> _Function:
    """Return the function as torch compiles it, once for all; itself, if torch cannot."""
    with _lock:
        if function not in _known:
            _known[function] = _compile(function)
        return cast(_Function, _known[function])


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        if torch._C._jit_can_fuse_on_cpu():
            _log.info("%s is run by Python: torch would fuse it, and round otherwise", function.__qualname__)
            return function
        found: Callable[..., Any] = torch.jit.script(function)
    except Exception as error:  # whatever torch or its successor says
        _log.warning("%s is run by Python: %s: %s", function.__qualname__, type(error).__name__, error)
        return function

    @wraps(found)
    def holding(*arguments: Any) -> Any:
        # What compiled code lets go of in the middle, if it is Python's too and nothing else in C++ has it,
        # is let go of under Python's lock: a forward stood still while others began to work on its
        # predecessor's answers.
        _held = torch._C.ScriptList(list(tensors_in(arguments)))
        return found(*arguments)

    return holding


def tensors_in(things: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples and lists."""
    for thing in things:
        if isinstance(thing, Tensor):
            yield thing
        elif isinstance(thing, tuple | list):
            yield from tensors_in(thing)
