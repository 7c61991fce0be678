"""Tool: something that a policy may call, with what a model must know of it."""

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
    """A name, a description, a JSON schema of the arguments, and what happens when it is called.

    `tool` makes one of a function. A subclass sets the three attributes and overrides `call`, and `close` if
    it holds something open.
    """

    name: str
    description: str
    """For the model."""
    parameters: dict[str, Any]
    """JSON schema of the arguments: an object."""
    timeout_seconds: float | None = None
    """After which a call is given up; None leaves it to the limits of the episode."""
    runs_beside: bool = True
    """Whether a call may run in another thread than the environment, which a time limit needs."""

    def call(self, arguments: Mapping[str, Any]) -> str:
        """Do it and return the result as text.

        Args:
            arguments: JSON values by name, as the model gave them.

        Raises:
            ToolArgumentsError: They do not fit the schema.
            ToolError: It failed; the text is for the model.
            EnvironmentInfrastructureError: What it runs on failed, which is no fault of the policy.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method call(arguments)")

    def close(self) -> None:
        """Let go of what the tool holds; may be called twice."""

    def recorded(self) -> Any:
        """Return what stands for the tool in an environment's spec, best as JSON; see `named_tools`."""
        return self

    def schema(self) -> dict[str, Any]:
        """Return what a model is told, in the form that chat templates and APIs share."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class FunctionTool(Tool):
    """A function, or a method of an environment, as a tool; called directly it is still the function."""

    def __init__(
        self, function: Callable[..., Any], *, name: str = "", timeout_seconds: float | None = None
    ) -> None:
        """Read the function's signature and docstring.

        Raises:
            InvalidToolError: A model could not be told how to call it.
        """
        self.name = name or function.__name__
        if not _NAME.fullmatch(self.name):
            raise InvalidToolError(
                f"{self.name!r} is no name for a tool", hint="use letters, digits and _ and pass name=..."
            )
        self.function = function
        self._is_method = next(iter(inspect.signature(function).parameters), "") == "self"
        if self._is_method and timeout_seconds is not None:
            raise InvalidToolError(
                f"{self.name} is a method of an environment and cannot have a time limit of its own",
                hint="it could go on changing the environment; set limits.step_timeout_seconds of the job",
            )
        self._signature = Signature(function, name=self.name, is_method=self._is_method)
        self.description, self.parameters = self._signature.description, self._signature.parameters
        self.timeout_seconds = timeout_seconds
        self.runs_beside = not self._is_method
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
        """Call the function as it was written."""
        return self.function(*([] if self._instance is None else [self._instance]), *args, **kwargs)

    def __reduce__(self) -> Any:
        # By name, as functions are pickled; a bound method by its environment.
        if self._instance is not None:
            return getattr, (self._instance, self.__name__)
        return self.__qualname__

    def recorded(self) -> Any:
        """Return `module:name` where that leads to this tool, else the tool itself."""
        path = f"{self.__module__}:{self.__qualname__}"
        try:
            return path if named(path) is self else self
        except InvalidToolError:
            return self

    def call(self, arguments: Mapping[str, Any]) -> str:
        """Check the arguments, call the function, and return its result as text."""
        if self.unbound:
            raise InvalidToolError(f"{self.name} is a method: take it from an instance")
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
    """Make a tool of a function or of an environment's method.

    The model is told the name, the docstring up to its sections, and the arguments with their annotations and
    their lines under `Args:`.

    Args:
        function: Annotated with str, int, float, bool, list, dict, Literal, Optional, Enum, pydantic models.
        name: Another name than the function's.
        timeout_seconds: After which a call is given up and the model told so. The function goes on in its
            thread, since nothing can stop it; so this suits functions that wait, not such that compute.

    Raises:
        InvalidToolError: A model could not be told how to call it; the text says what to change.

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
    """Return what `module:name` stands for.

    Raises:
        InvalidToolError: There is no such thing.
    """
    module_name, _, name = path.partition(":")
    try:
        return functools.reduce(getattr, name.split("."), importlib.import_module(module_name))
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidToolError(
            f"{path!r} cannot be found: {error}", hint="name it as module:name", field="tools"
        ) from error


def as_text(value: object) -> str:
    """Return what a model reads of a tool's result: text as it is, all else as JSON."""
    if value is None:
        return "done"
    if isinstance(value, str):
        return str(value)
    try:
        return to_json(value, inf_nan_mode="constants").decode()
    except (PydanticSerializationError, ValueError, RecursionError):
        return str(value)
