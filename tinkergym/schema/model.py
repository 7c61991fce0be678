"""Base classes of all models that client and service exchange."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache, cached_property
from types import FunctionType
from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.refusals import Refusal, explain, no_effect
from tinkergym.trajectory.bounded_numbers import BoundedNumbers

MOST_EPISODES = 20_000
"""The most entries in a list of episodes or leases. Every list on the wire is bounded."""

MOST_RESULTS = 10_000
"""The most episodes submitted at once."""


class WireModel(BoundedNumbers):
    """Frozen, strict about unknown keys, finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def _refuse_idle(self, field: str, is_idle: bool, wanted: str) -> None:
        """Refuse a setting that would have no effect, unless it has its default value."""
        if is_idle and self.is_chosen(field):
            raise no_effect(field, wanted).in_validator()

    def is_chosen(self, field: str) -> bool:
        """Whether a setting has another value than its default."""
        return bool(getattr(self, field) != type(self).model_fields[field].default)


class UserSettings(WireModel):
    """User-written settings. Booleans and strings are rejected where a number is expected."""

    largest_int: ClassVar[int] = 10**12
    largest_float: ClassVar[float] = 1e12
    least_positive: ClassVar[float] = 1e-30
    """A smaller one is a slip, and float32 rounds it to 0."""

    # Checked on the model, not on each field: a union's discriminator cannot have a validator.
    @model_validator(mode="before")
    @classmethod
    def _a_number_is_written_as_one(cls, settings: object) -> object:
        if isinstance(settings, Mapping):
            for name in _numbers_of(cls):
                if isinstance(value := settings.get(name), bool | str):
                    reason = f"must be a number, not {value!r:.80}"
                    raise Refusal(name, reason, "write it as a number", "not_a_number").in_validator()
        return settings


@cache
def _numbers_of(kind: type[BaseModel]) -> tuple[str, ...]:
    """Return the names of the fields that hold nothing but numbers."""
    return tuple(name for name, field in kind.model_fields.items() if _is_number(field.annotation))


def _is_number(annotation: object) -> bool:
    kinds = set(get_args(annotation) or (annotation,)) - {type(None)}
    return bool(kinds) and kinds <= {int, float}


class Choice(UserSettings):
    """A part of a job's settings that scripts construct themselves.

    Raises:
        InvalidRequestError: A setting is invalid. The message says which, why and what to do.
    """

    def __init__(self, /, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            explained = explain(error, type(self))
            # The location within a job is not known here, but the given value is.
            explained.field = f"{type(self).__name__}.{explained.field}".rstrip(".")
            raise explained from None

    @classmethod
    def _is_installed(cls, base: type) -> bool:
        """Whether the service has the code of a foreign class, or refuses its settings by name."""
        return False

    # As pydantic's own: it is not called for nested settings, whose errors keep their location.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Refuse a user's subclass that has methods: settings are sent to the service, code is not."""
        installed = {part for base in cls.__mro__ if cls._is_installed(base) for part in base.__mro__}
        for base in cls.__mro__:
            if base in installed or not _is_foreign(base):
                continue
            for name, value in vars(base).items():
                if isinstance(value, _METHODS) and not _takes_effect(cls, name):
                    whose = "" if base is cls else f" of {base.__name__}"
                    raise InvalidRequestError(
                        f"the service would ignore the method {name}(){whose}, because it receives the "
                        f"settings of {cls.__name__}, not its code",
                        hint="remove the method, as a subclass may only change defaults; to compute losses "
                        "or advantages yourself, install an algorithm with a `name` of its own "
                        "(docs/guides/own_algorithm.md), or write your own loop (docs/guides/own_loop.md)",
                        field=f"{cls.__name__}.{name}",
                    )


_METHODS = (FunctionType, property, cached_property, classmethod, staticmethod)


def _is_foreign(base: type) -> bool:
    """Whether a class is the user's, not one of this package, of pydantic or of Python."""
    package = base.__module__.partition(".")[0]
    return package not in {__name__.partition(".")[0], "pydantic", *sys.stdlib_module_names}


def _takes_effect(cls: type[BaseModel], name: str) -> bool:
    """Whether a method is called in this process: pydantic's checks, and special ones such as `__repr__`."""
    decorated = cls.__pydantic_decorators__
    checks = {*decorated.field_validators, *decorated.model_validators}
    return name in checks or (name.startswith("__") and name != "__call__")
