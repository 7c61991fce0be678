"""The models of which everything is made that client and service say to each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # the way to it that pydantic promises to keep

MOST_EPISODES = 20_000
"""In one list of episodes or of their leases. Every list of the wire has a bound."""

MOST_RESULTS = 10_000
"""Episodes that are handed in at once."""

_reading_back: ContextVar[bool] = ContextVar("_reading_back", default=False)


class WireModel(BaseModel):
    """Frozen, strict about unknown keys, finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def _refuse_idle(self, field: str, is_idle: bool, wanted: str) -> None:
        """Refuse a setting that would do nothing, where it is not left at its default."""
        if is_idle and getattr(self, field) != type(self).model_fields[field].default:
            self._refuse(f"{field} takes effect only with {wanted}; set that too, or leave it out")

    def _refuse(self, reason: str) -> None:
        """Refuse settings that are harmless, but not what was meant."""
        if not _reading_back.get():
            raise ValueError(reason)


@contextmanager
def reading_back() -> Iterator[None]:
    """Take settings that were accepted once, also where a later version refuses them as idle."""
    token = _reading_back.set(True)
    try:
        yield
    finally:
        _reading_back.reset(token)


class WrittenByPeople(WireModel):
    """Settings, in which True is no 1 and "3" no 3: both are rather a slip."""

    # Of the model, not of each field: the one that tells the members of a union apart can have none.
    @model_validator(mode="before")
    @classmethod
    def _a_number_is_written_as_one(cls, settings: object) -> object:
        if isinstance(settings, Mapping):
            for name, field in cls.model_fields.items():
                value = settings.get(name)
                if isinstance(value, bool | str) and _is_number(field.annotation):
                    raise ValueError(f"{name} must be a number, not {value!r:.80}")
        return settings


def _is_number(annotation: object) -> bool:
    kinds = set(get_args(annotation) or (annotation,)) - {type(None)}
    return bool(kinds) and kinds <= {int, float}


class _Explained(ModelMetaclass):
    """Lets a wrong setting read the same where a script writes it as where a job with it is refused.

    Not an `__init__`: pydantic would call that for settings inside of others too, and lose where they stand.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - a metaclass, whose self is a class
        _refuse_methods(cast("type[BaseModel]", cls))
        try:
            return super().__call__(*args, **kwargs)
        except ValidationError as error:
            from tinkergym.spec_errors import explain

            explained = explain(error, cast("type[BaseModel]", cls))
            # Where it stands in a job is not known here, but what was written is.
            explained.field = f"{cls.__name__}.{explained.field}".rstrip(".")
            raise explained from None


def _refuse_methods(model: type[BaseModel]) -> None:
    """Refuse a subclass of a user's own that computes something: settings travel, code does not."""
    decorated = model.__pydantic_decorators__
    checks = {*decorated.field_validators, *decorated.model_validators}  # which take effect right here
    for cls in model.__mro__:
        if cls.__module__.partition(".")[0] == __name__.partition(".")[0]:
            return  # ours, and so is everything above it
        for name, value in vars(cls).items():
            own = (not name.startswith("_") or name == "__call__") and name not in checks
            if own and isinstance(value, FunctionType | property | classmethod | staticmethod):
                from tinkergym.errors import InvalidRequestError

                raise InvalidRequestError(
                    f"the service would ignore the method {name}(): it gets the settings of "
                    f"{cls.__name__}, not its code",
                    hint="remove the method; a subclass may only change the defaults of settings",
                    field=f"{cls.__name__}.{name}",
                )


class Choice(WrittenByPeople, metaclass=_Explained):
    """A part of a job's settings that scripts write down themselves.

    Raises:
        InvalidRequestError: A setting is wrong; says which, why and what to do.
    """
