"""Functions of tensors that run without Python.

After each torch operation Python takes its lock again, and waits for it if another thread is busy: a forward
pass of a small model next to a permanently busy thread took ten times as long. `torch.jit.script` compiles a
function, with everything it calls, into one operation that needs the lock only once, at its end. (torch
deprecates it in favour of `torch.compile`, but that needs a C++ compiler on the user's machine.)

Compiled functions are written in the subset of Python that `torch.jit` supports, run uncompiled where
compilation fails, and give the same bits either way. Named tuples that it takes must be declared in modules
without `from __future__ import annotations`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from backend.compute.cpu import CPU_KERNELS

_log = logging.getLogger(__name__)
_Function = TypeVar("_Function", bound=Callable[..., Any])
_lock = threading.Lock()
_known: dict[Callable[..., Any], Callable[..., Any]] = {}


def compiled(function: _Function) -> _Function:
    """Return the compiled function, compiled once; the function itself, if torch cannot compile it."""
    with _lock:
        if function not in _known:
            _known[function] = _compile(function)
        return cast(_Function, _known[function])


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    if not CPU_KERNELS:
        return function
    try:
        if torch._C._jit_can_fuse_on_cpu():
            _log.info(
                "%s is not compiled: torch would fuse it, which changes the rounding", function.__qualname__
            )
            return function
        found: Callable[..., Any] = torch.jit.script(function)
    except Exception as error:  # Whatever torch or its successor raises.
        _log.warning("%s is not compiled: %s: %s", function.__qualname__, type(error).__name__, error)
        return function

    @wraps(found)
    def holding(*arguments: Any) -> Any:
        # If Python also owns an object that compiled code releases in the middle, it is released under
        # Python's lock: a forward pass stalled while others started to process the results of its
        # predecessor.
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
