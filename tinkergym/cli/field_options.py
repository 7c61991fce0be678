"""Options of commands that are generated from the fields of a spec: their type, default and help."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tinkergym.cli.key_value_settings import job_settings
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.decoding import Decoding

_SET = inspect.Parameter(
    "pairs",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any other setting: warmup_steps=10; repeatable."),
    ],
)


@dataclass(frozen=True, slots=True)
class SettingOption:
    """An option for one setting of a job. What is left out is that of the field."""

    setting: str
    """The dotted name of the setting, or an argument of the client's method that starts the job."""
    help: str = ""
    """By default the first sentence of the field's docstring, and the default."""
    _: KW_ONLY
    name: str = ""
    """The option, without dashes."""
    kind: Any = None
    """The type of its value; `bool` for a flag."""
    flag: Any = True
    """What a flag sets."""
    metavar: str | None = None
    required: bool = False
    read: Callable[[Any], Any] = lambda value: value
    """Turns the option's value into the setting's."""

    @property
    def parameter_name(self) -> str:
        """The name of the command's parameter."""
        return self.setting.replace(".", "_")

    def parameter(self, spec: type[BaseModel]) -> inspect.Parameter:
        """Return the parameter of a function that typer makes a command of."""
        model, field = _field_of(spec, self.setting)
        kind = self.kind or (field.annotation if field and field.annotation in {int, float} else str)
        name = self.name or self.setting.rpartition(".")[2].replace("_", "-")
        text = self.help or help_of(model, self.setting.rpartition(".")[2])
        flag = kind is bool
        return inspect.Parameter(
            self.parameter_name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if self.required else False if flag else None,
            annotation=Annotated[
                kind if self.required or flag else kind | None,
                typer.Option(f"--{name}", help=text, metavar=self.metavar),
            ],
        )

    def value(self, said: Any) -> Any:
        """Return the setting for what the command line says; None if it says nothing."""
        if said is None or said is False or said == []:
            return None
        return self.flag if said is True else self.read(said)


def _field_of(spec: type[BaseModel], setting: str) -> tuple[type[BaseModel], FieldInfo | None]:
    """Return a field and its model. Within a section they are those of the default variant."""
    *sections, name = setting.split(".")
    for section in sections:
        usual = spec.model_fields[section].get_default(call_default_factory=True)
        spec = type(usual) if isinstance(usual, BaseModel) else spec
    return spec, spec.model_fields.get(name)


def help_of(model: type[BaseModel], name: str) -> str:
    """Return the first sentence of a field's docstring, and its default."""
    doc = next(filter(None, (_doc_in(kind, name) for kind in model.__mro__)), "")
    sentence, dot, _ = " ".join(doc.split()).partition(". ")
    default = model.model_fields[name].get_default()
    shown = isinstance(default, int | float | str) and default not in {"", 0.0}
    return " ".join(filter(None, [sentence + dot.strip(), f"(default: {default})" if shown else ""]))


def _doc_in(kind: type, name: str) -> str:
    """Return the docstring below a field in the source of its class; empty if there is none."""
    if name not in vars(kind).get("__annotations__", {}):
        return ""
    _, _, body = _source_of(kind.__module__).partition(f"\nclass {kind.__name__}(")
    field = rf'^    {name}: .*\n(?:     .*\n|    [)\]].*\n)*    """((?:.|\n)*?)"""'
    found = re.search(field, body.partition("\nclass ")[0], re.MULTILINE)
    return found[1] if found else ""


@functools.cache
def _source_of(module: str) -> str:
    return Path(str(sys.modules[module].__file__)).read_text("utf-8")


def with_job_options(
    spec: type[BaseModel], argument: str, options: Sequence[SettingOption]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a job, and `--set`, in place of its parameter `settings`.

    Args:
        spec: The settings of the kind of job.
        argument: The name of what the command's positional argument is.
        options: The options, in order.
    """

    def settings(given: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
        return job_settings(spec, [argument], given, said.pop("pairs") or [])

    return _replacing("settings", settings, spec, options, [_SET])


def with_decoding_options(
    options: Sequence[SettingOption],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options of `Decoding` in place of its parameter `decoding`: those that were given.

    An option that is out of range is refused by its name.
    """

    def decoding(given: dict[str, Any], _: dict[str, Any]) -> dict[str, Any]:
        try:
            Decoding().with_options(**given)
        except InvalidRequestError as error:
            error.field = f"--{error.field.replace('_', '-')}"
            raise
        return given

    return _replacing("decoding", decoding, Decoding, options, [])


def _replacing(
    name: str,
    read: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]],
    spec: type[BaseModel],
    options: Sequence[SettingOption],
    more: Sequence[inspect.Parameter],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that puts options in place of a command's parameter.

    Args:
        name: Of the parameter.
        read: Given the settings of the options and what else the command line says, returns its value. It
            takes out what it uses.
        spec: The settings.
        options: The options, in order.
        more: Parameters after them.
    """

    def decorated(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(**said: Any) -> None:
            values = {one.setting: one.value(said.pop(one.parameter_name)) for one in options}
            given = {setting: value for setting, value in values.items() if value is not None}
            found = read(given, said)
            function(**{name: found}, **said)

        generated = [*(option.parameter(spec) for option in options), *more]
        parameters: list[inspect.Parameter] = []
        for one in inspect.signature(function, eval_str=True).parameters.values():
            parameters += generated if one.name == name else [one]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # typer reads it
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        return command

    return decorated
