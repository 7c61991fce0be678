"""Which isolation a process requires for code that a policy wrote.

A service passes its operator's setting `python_tool` to its processes in an environment variable. Without the
variable, as in a client, `PythonTool` takes the best isolation that the machine offers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from tinkergym.errors import InvalidToolError

Isolation = Literal["namespaces", "limits"]
PythonToolSetting = Literal["namespaces", "limits", "off"]

VARIABLE = "TINKERGYM_PYTHON_TOOL"
ACCEPT_LIMITS = "tinkergym serve --set python_tool=limits"
RISK = (
    "does not stop code that tries to escape: it can then read and change whatever the service can, "
    "the jobs of all tenants included"
)


def require(setting: PythonToolSetting) -> None:
    """Require this of all code that this process and its children run in the sandbox."""
    os.environ[VARIABLE] = setting


@contextmanager
def requiring(setting: PythonToolSetting) -> Iterator[None]:
    """Require this until the block ends."""
    before = os.environ.get(VARIABLE)
    require(setting)
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def setting_here() -> str | None:
    """Return the setting of the service to which this process belongs; None outside of one."""
    return os.environ.get(VARIABLE)


def required_isolation(
    asked: Isolation | None, missing: Callable[[], str], best: Callable[[], Isolation]
) -> Isolation:
    """Return the isolation for a run.

    Args:
        asked: What the tool asks for; None leaves it to the machine.
        missing: Returns why the machine has no namespaces; "" if it has.
        best: Returns the best isolation of the machine.

    Raises:
        InvalidToolError: The code must not run here.
    """
    match setting_here():
        case None | "limits":
            return asked or best()
        case "off":
            raise InvalidToolError(
                "this service does not run Python that policies write: its python_tool is off",
                hint="play the episodes with rollout='client', or ask the operator to set python_tool",
            )
    reason = missing()
    if reason:
        raise InvalidToolError(
            f"this service runs Python that policies write in namespaces only, and its machine offers none: "
            f"{reason}",
            hint="play the episodes with rollout='client', or allow user namespaces there; "
            f"`{ACCEPT_LIMITS}` (or `serve-env --python-tool limits`) {RISK}",
        )
    return "namespaces"
