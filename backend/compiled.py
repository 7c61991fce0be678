"""Functions of tensors that run from end to end without Python.

After each of torch's operations Python takes its lock again, and waits for it wherever another thread is
busy: a forward of a small model beside a thread that never rests took ten times as long. `torch.jit.script`
compiles a function, with all that it calls, into one operation that needs the lock once. (torch would rather
have `torch.compile`, which needs a C++ compiler on the user's machine.)

What is compiled is written in the part of Python that `torch.jit` knows, runs as it is where it cannot be
compiled, and gives the same bits either way. Named tuples that it takes must be declared in modules without
`from __future__ import annotations`.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch

_log = logging.getLogger(__name__)
_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """Return the function as torch compiles it; itself, if torch cannot."""
    try:
        with warnings.catch_warnings():
            # It is deprecated; that it is gone would be found out here.
            warnings.simplefilter("ignore", DeprecationWarning)
            found: _Function = torch.jit.script(function)
            return found
    except Exception as error:  # whatever torch or its successor says
        _log.warning("%s is run by Python: %s: %s", function.__qualname__, type(error).__name__, error)
        return function
