"""From a function's annotations and docstring to a JSON schema, and from a model's JSON to arguments."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, ValidationError, create_model
from pydantic_core import PydanticSerializationError

from tinkergym.errors import InvalidToolError, ToolArgumentsError

_PLAIN = (str, int, float, bool)
_ALLOWED = "str, int, float, bool, list, dict, Literal, Optional, an Enum or a pydantic model"
_SECTION = re.compile(r"(Args|Arguments|Parameters):\s*$")
_OTHER_SECTION = re.compile(r"[A-Z]\w*( \w+)?:\s*$")
_ENTRY = re.compile(r"(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")
_MOST_PROBLEMS = 5
_MOST_CHARACTERS = 80


class Signature:
    """The arguments of a function, described for a model and validated for us."""

    def __init__(self, function: Callable[..., Any], *, name: str, is_method: bool) -> None:
        """Read the function.

        Raises:
            InvalidToolError: It cannot be described; the text says what to change.
        """
        self._name = name
        self.description, described = _read_docstring(inspect.getdoc(function) or "", name)
        hints = _hints(function, name)
        fields: dict[str, Any] = {}
        parameters = list(inspect.signature(function).parameters.values())[1 if is_method else 0 :]
        for number, parameter in enumerate(parameters):
            where = f"{name}({parameter.name})"
            if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
                raise InvalidToolError(
                    f"{where} has no fixed name", hint="give each argument a name", code="no_name"
                )
            if parameter.name not in hints:
                raise InvalidToolError(
                    f"{where} has no annotation", hint=f"annotate it with {_ALLOWED}", code="no_annotation"
                )
            _check(hints[parameter.name], where)
            default = ... if parameter.default is parameter.empty else parameter.default
            info = Field(default, alias=parameter.name, description=described.pop(parameter.name, None))
            # Under our own names: an argument called `json` would hide a method of the model.
            fields[f"argument_{number}"] = (hints[parameter.name], info)
        if described:
            raise InvalidToolError(
                f"the docstring of {name} describes {', '.join(described)}, which is not an argument",
                hint="use the names of the signature in the section Args",
                code="unknown_argument",
            )
        config = ConfigDict(extra="forbid", allow_inf_nan=False, validate_default=True)
        try:
            self._model = create_model(name, __config__=config, **fields)
            self.parameters = _simplified(self._model.model_json_schema())
            self._model.model_validate({p.name: p.default for p in parameters if p.default is not p.empty})
        except ValidationError as error:
            # Missing required arguments are not an error here.
            wrong = [e for e in error.errors() if e["type"] != "missing"]
            if wrong:
                raise InvalidToolError(
                    f"a default of {name} does not match its annotation: {wrong[0]['msg']}",
                    code="wrong_default",
                ) from None
        except (PydanticUserError, PydanticSerializationError, RecursionError) as error:
            raise InvalidToolError(
                f"{name} cannot be described as JSON schema: {error}", code="no_schema"
            ) from error
        self.names = tuple(parameter.name for parameter in parameters)
        self._fields = {f"argument_{number}": name for number, name in enumerate(self.names)}

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as Python values.

        Raises:
            ToolArgumentsError: They do not match; the text tells the model what to change.
        """
        try:
            model = self._model.model_validate(dict(arguments))
        except ValidationError as error:
            raise ToolArgumentsError(self._complaint(error)) from None
        except RecursionError:
            raise ToolArgumentsError(f"{self._name}: the arguments are nested too deeply") from None
        given = model.model_fields_set
        return {name: getattr(model, key) for key, name in self._fields.items() if key in given}

    def _complaint(self, error: ValidationError) -> str:
        problems = []
        for found in error.errors(include_url=False)[:_MOST_PROBLEMS]:
            where = ".".join(str(part)[:_MOST_CHARACTERS] for part in found["loc"])
            if found["type"] == "missing":
                problems.append(f"{where} is missing")
            elif found["type"] == "extra_forbidden":
                problems.append(f"there is no argument {where}")
            else:
                problems.append(f"{where}: {found['msg']}, not {repr(found['input'])[:_MOST_CHARACTERS]}")
        takes = ", ".join(self.names) or "no arguments"
        return f"{self._name}: {'; '.join(problems)}. It takes: {takes}."


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, SyntaxError) as error:
        raise InvalidToolError(
            f"the annotations of {name} cannot be read: {error}",
            hint="use types that are defined in the function's module",
            code="unreadable_annotation",
        ) from error


def _check(annotation: Any, where: str) -> None:
    """Refuse annotations that cannot be filled from JSON."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in (*_PLAIN, list, dict):
        return
    if isinstance(annotation, type) and origin is None and issubclass(annotation, Enum | BaseModel):
        return
    if origin is Literal and all(isinstance(value, str | int | bool) for value in arguments):
        return
    if origin is list:
        return _check(arguments[0], where)
    if origin is dict and arguments[0] is str:
        return _check(arguments[1], where)
    if origin in (Union, types.UnionType) and len(arguments) == 2 and type(None) in arguments:
        return _check(next(a for a in arguments if a is not type(None)), where)
    raise InvalidToolError(
        f"{where} is annotated with {inspect.formatannotation(annotation)}, which cannot be filled from JSON",
        hint=f"use {_ALLOWED}",
        code="not_json",
    )


def _read_docstring(text: str, name: str) -> tuple[str, dict[str, str]]:
    """Return the text before the sections, and the descriptions of the arguments by name."""
    description: list[str] = []
    arguments: dict[str, str] = {}
    section, entry = "", ""
    indent = 0
    for line in text.splitlines():
        if not line.startswith(" ") and _OTHER_SECTION.match(line):
            section, entry = ("Args" if _SECTION.match(line) else "other"), ""
        elif not section:
            description.append(line)
        elif section == "Args" and line.strip():
            depth = len(line) - len(line.lstrip())
            found = _ENTRY.match(line.strip())
            if found is not None and (not entry or depth <= indent):
                entry, indent = found[1], depth
                arguments[entry] = found[2]
            elif entry:
                arguments[entry] += f" {line.strip()}"
    joined = "\n".join(description).strip()
    if not joined:
        raise InvalidToolError(
            f"{name} has no docstring", hint="say in it what the tool does and returns", code="no_docstring"
        )
    return joined, {key: value.strip() for key, value in arguments.items()}


def _simplified(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without titles and references: shorter, and easier for a model to read."""
    definitions = schema.pop("$defs", {})

    def simplify(node: Any, inside: tuple[str, ...]) -> Any:
        if isinstance(node, list):
            return [simplify(item, inside) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            target = node["$ref"].rpartition("/")[2]
            if target in inside:
                raise InvalidToolError(
                    f"the model {target} contains itself", hint="use a dict instead", code="recursive"
                )
            rest = {key: value for key, value in node.items() if key != "$ref"}
            return simplify({**definitions[target], **rest}, (*inside, target))
        kept = {key: value for key, value in node.items() if key != "title" or isinstance(value, dict)}
        return {
            key: {name: simplify(item, inside) for name, item in value.items()}
            if key == "properties"
            else simplify(value, inside)
            for key, value in kept.items()
            if not (key == "description" and not value)
        }

    simple: dict[str, Any] = simplify(schema, ())
    simple.setdefault("properties", {})
    return simple
