"""Tool: something that a policy may call, with its description for a model."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Self, overload

from pydantic_core import PydanticSerializationError, to_json

from tinkergym.errors import InvalidToolError
from tinkergym.tools.signature import Signature

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,63}")


class Tool:
    """A name, a description, a JSON schema of the arguments, and a function to call.

    `tool` makes one from a function. A subclass sets the three attributes and overrides `call`, and `close`
    if it holds resources.
    """

    name: str
    description: str
    """Shown to the model."""
    parameters: dict[str, Any]
    """JSON schema of the arguments: an object."""
    timeout_seconds: float | None = None
    """Time limit of a call; None leaves it to the limits of the episode."""
    runs_beside: bool = True
    """Whether a call may run in a different thread than the environment, which a time limit requires."""
    is_independent: bool = False
    """Whether calls may run at the same time as others of the same answer, because none depends on the order
    in which they run."""

    def call(self, arguments: Mapping[str, Any]) -> str:
        """Run the tool and return the result as text.

        Args:
            arguments: JSON values by name, from the model.

        Raises:
            ToolArgumentsError: They do not match the schema.
            ToolError: It failed; the text is shown to the model.
            EnvironmentInfrastructureError: Its infrastructure failed, which is not the policy's fault.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method call(arguments)")

    def close(self) -> None:
        """Release resources; may be called twice."""

    def recorded(self) -> Any:
        """Return the tool's form in an environment's spec, preferably as JSON; see `named_tools`."""
        return self

    def schema(self) -> dict[str, Any]:
        """Return the description for a model, in the format of chat templates and APIs."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class FunctionTool(Tool):
    """A function, or a method of an environment, as a tool. Called directly, it is still the function."""

    def __init__(
        self, function: Callable[..., Any], *, name: str = "", timeout_seconds: float | None = None
    ) -> None:
        """Read the function's signature and docstring.

        Raises:
            InvalidToolError: It cannot be described to a model.
        """
        self.name = name or function.__name__
        if not _NAME.fullmatch(self.name):
            raise InvalidToolError(
                f"{self.name!r} is not a valid tool name",
                hint="use letters, digits and _ and pass name=...",
                field="name",
            )
        self.function = function
        self._is_method = next(iter(inspect.signature(function).parameters), "") == "self"
        if self._is_method and timeout_seconds is not None:
            raise InvalidToolError(
                f"{self.name} is a method of an environment and cannot have its own time limit",
                hint="it could continue to change the environment; set limits.step_timeout_seconds of the "
                "job",
                field="timeout_seconds",
            )
        self._signature = Signature(function, name=self.name, is_method=self._is_method)
        self.description, self.parameters = self._signature.description, self._signature.parameters
        self.timeout_seconds = timeout_seconds
        self.runs_beside = self.is_independent = not self._is_method
        self._instance: Any = None
        self.__doc__ = function.__doc__
        self.__name__, self.__module__ = function.__name__, function.__module__
        self.__qualname__ = getattr(function, "__qualname__", function.__name__)

    @property
    def unbound(self) -> bool:
        """Whether this is a method without its environment."""
        return self._is_method and self._instance is None

    def __get__(self, instance: Any, owner: type | None = None) -> Self:
        """Bind a method to its environment."""
        if instance is None or not self._is_method:
            return self
        bound = object.__new__(type(self))
        bound.__dict__.update(self.__dict__, _instance=instance)
        return bound

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original function."""
        return self.function(*([] if self._instance is None else [self._instance]), *args, **kwargs)

    def __reduce__(self) -> Any:
        # By name, as functions are pickled; a bound method by its environment.
        if self._instance is not None:
            return getattr, (self._instance, self.__name__)
        return self.__qualname__

    def recorded(self) -> Any:
        """Return `module:name` if that is this tool, else the tool itself."""
        path = f"{self.__module__}:{self.__qualname__}"
        try:
            return path if named(path) is self else self
        except InvalidToolError:
            return self

    def call(self, arguments: Mapping[str, Any]) -> str:
        """Check the arguments, call the function, and return its result as text."""
        if self.unbound:
            raise InvalidToolError(
                f"{self.name} is a method; use it through an instance", code="unbound_method"
            )
        return as_text(self(**self._signature.bind(arguments)))


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...
@overload
def tool(
    *, name: str = "", timeout_seconds: float | None = None
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(
    function: Callable[..., Any] | None = None, /, *, name: str = "", timeout_seconds: float | None = None
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Make a tool from a function or an environment's method.

    The model sees the name, the docstring up to its sections, and the arguments with their annotations and
    their lines under `Args:`.

    Args:
        function: Annotated with str, int, float, bool, list, dict, Literal, Optional, Enum, pydantic models.
        name: A name that replaces the function's.
        timeout_seconds: Time limit of a call; the model is told when it is exceeded. The function continues
            in its thread, because nothing can stop it, so this is for functions that wait, not for
            computations.

    Raises:
        InvalidToolError: It cannot be described to a model; the text says what to change.

    Example:
        >>> @tool
        ... def area(width: float, height: float = 1.0) -> float:
        ...     '''Return the area of a rectangle.
        ...
        ...     Args:
        ...         width: In metres.
        ...         height: In metres.
        ...     '''
        ...     return width * height
    """
    if function is not None:
        return FunctionTool(function)
    return lambda f: FunctionTool(f, name=name, timeout_seconds=timeout_seconds)


def named(path: str) -> Any:
    """Return the object named by `module:name`.

    Raises:
        InvalidToolError: There is no such object.
    """
    module_name, _, name = path.partition(":")
    try:
        return functools.reduce(getattr, name.split("."), importlib.import_module(module_name))
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidToolError(
            f"{path!r} cannot be found: {error}", hint="name it as module:name", field="tools"
        ) from error


def as_text(value: object) -> str:
    """Return a tool's result as text for a model: text unchanged, anything else as JSON."""
    if value is None:
        return "done"
    if isinstance(value, str):
        return str(value)
    try:
        return to_json(value, inf_nan_mode="constants").decode()
    except (PydanticSerializationError, ValueError, RecursionError):
        return str(value)
