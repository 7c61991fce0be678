"""What the service tells its operator about the isolation of Python that policies write."""

from __future__ import annotations

from collections.abc import Callable

from backend.app.greeting import Notice
from tinkergym.errors import TinkerGymError
from tinkergym.tools.sandbox.isolation_rule import ACCEPT_LIMITS, RISK, PythonToolSetting
from tinkergym.tools.sandbox.python_run import missing_namespaces


def isolation_notice(
    setting: PythonToolSetting, missing: Callable[[], str] = missing_namespaces
) -> Notice | None:
    """Return the message about `PythonTool`; None if the machine was too busy to tell.

    Args:
        setting: The operator's `python_tool`.
        missing: Returns why the machine has no namespaces; "" if it has.
    """
    if setting == "off":
        return _notice(setting, "off", "", "Python that policies write (PythonTool) is off")
    try:
        reason = missing()
    except TinkerGymError:
        return None
    if not reason:
        return _notice(
            setting, "namespaces", "", "Python that policies write (PythonTool) runs in namespaces"
        )
    if setting == "limits":
        message = f"Python that policies write (PythonTool) runs with limits only, which {RISK}"
        return _notice(setting, "limits", reason, message)
    return _notice(
        setting,
        "none",
        reason,
        f"jobs with Python that policies write (PythonTool) are refused, because this machine offers no "
        f"namespaces ({reason}); `{ACCEPT_LIMITS}` runs them anyway, but {RISK}",
    )


def _notice(setting: str, isolation: str, reason: str, message: str) -> Notice:
    return Notice("python_tool", message, {"setting": setting, "isolation": isolation, "reason": reason})
