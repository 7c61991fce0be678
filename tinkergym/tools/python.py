"""PythonTool: the policy runs Python in a sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tinkergym.errors import InvalidToolError, ToolArgumentsError, ToolError
from tinkergym.tools.definition import Tool
from tinkergym.tools.sandbox.isolation_rule import Isolation, setting_here
from tinkergym.tools.sandbox.python_run import Limits, isolation_for, run_python

_DESCRIPTION = (
    "Run Python code in a fresh process and return what it prints, and the value of a last expression. "
    "Nothing is kept between calls. There is no network. It may take {seconds:g} seconds."
)
_MOST_CODE_CHARACTERS = 200_000
_MOST_SECONDS = 86_400
"""A day. The system's waits and limits cannot take arbitrarily large numbers."""
_MOST = 2**31 - 1


class PythonTool(Tool):
    """Runs code in its own process, with limits; `tinkergym.tools.sandbox.python_run` explains the isolation.

    If code raises or exceeds its time or memory, the policy gets an error; a sandbox that cannot be started
    ends the episode. The same code gives the same output, as long as it uses neither the clock nor
    randomness.

    Example:
        >>> PythonTool(wall_seconds=2).call({"code": "2**100"})
        '1267650600228229401496703205376'
    """

    # It ends its calls itself, and never blocks longer than allowed.
    runs_beside = False

    def __init__(
        self,
        *,
        name: str = "python",
        isolation: Isolation | None = None,
        site_packages: bool = False,
        **limits: Any,
    ) -> None:
        """Set the limits.

        Args:
            name: The tool's name for the model.
            isolation: The required isolation: `namespaces`, or `limits` if that is enough; None uses the best
                available. A service may require more.
            site_packages: Whether the code may import the packages of this environment, not just the standard
                library.
            limits: `wall_seconds`, `cpu_seconds`, `memory_megabytes`, `file_megabytes`, `processes` and
                `output_characters`; see `tinkergym.tools.sandbox.python_run.Limits`.

        Raises:
            InvalidToolError: A setting is unknown or out of its range, or the service to which this process
                belongs does not run such code.
        """
        self._settings = {"isolation": isolation, "site_packages": site_packages, **limits}
        if name != "python":
            self._settings["name"] = name
        if isolation not in {None, "namespaces", "limits"}:
            raise InvalidToolError(f"{isolation!r} is neither namespaces nor limits", field="isolation")
        try:
            self.limits = Limits(**limits)
        except TypeError:
            known = ", ".join(asdict(Limits()))
            raise InvalidToolError(f"unknown limit: {', '.join(limits)}", hint=f"there are {known}") from None
        for limit, value in asdict(self.limits).items():
            _check(limit, value)
        self.name = name
        self.description = _DESCRIPTION.format(seconds=self.limits.wall_seconds)
        code = {"type": "string", "description": "A whole program; print what you want to see."}
        self.parameters = {
            "type": "object",
            "properties": {"code": code},
            "required": ["code"],
            "additionalProperties": False,
        }
        self._wanted, self._site_packages = isolation, site_packages
        if setting_here() is not None:  # In a service, a job is refused before it starts.
            isolation_for(isolation)

    @property
    def isolation(self) -> Isolation:
        """The isolation of code on this machine."""
        return isolation_for(self._wanted)

    def recorded(self) -> Any:
        """Return the settings to recreate the tool."""
        return {
            "tool": "tinkergym.tools:PythonTool",
            **{k: v for k, v in self._settings.items() if v is not None},
        }

    def call(self, arguments: Mapping[str, Any]) -> str:
        """Run `arguments["code"]`."""
        code = arguments.get("code")
        if not isinstance(code, str) or len(arguments) != 1:
            raise ToolArgumentsError(f'{self.name} takes one argument, "code", which must be text')
        if len(code) > _MOST_CODE_CHARACTERS:
            raise ToolArgumentsError(
                f"the code has {len(code)} characters, more than the limit of {_MOST_CODE_CHARACTERS}"
            )
        run = run_python(code, self.limits, isolation=self._wanted, site_packages=self._site_packages)
        output = run.output.rstrip("\n")
        match run.ending:
            case "finished":
                return output or "(the code printed nothing)"
            case "raised":
                raise ToolError(output or "the code ended with an error status and printed nothing")
            case "timeout":
                problem = f"the code was stopped after {self.limits.wall_seconds:g} s"
            case "cpu":
                problem = f"the code was stopped after {self.limits.cpu_seconds} s of computing"
            case "memory":
                problem = f"the code was stopped: its processes used over {self.limits.memory_megabytes} MB"
            case "killed":
                problem = "the code crashed the interpreter or was killed"
        raise ToolError(f"{problem}; it printed:\n{output}" if output else problem)


def _check(limit: str, value: Any) -> None:
    seconds = limit == "wall_seconds"
    most, kind = (_MOST_SECONDS, "a number") if seconds else (_MOST, "an integer")
    is_kind = isinstance(value, int | float) if seconds else isinstance(value, int)
    if isinstance(value, bool) or not is_kind or not 0 < value <= most:
        raise InvalidToolError(f"must be {kind} above 0 and at most {most}, not {value!r}", field=limit)


def python_tool(**settings: Any) -> PythonTool:
    """Return a `PythonTool` with these settings."""
    return PythonTool(**settings)
