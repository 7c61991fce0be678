"""Algorithms by name: the classes of `tinkergym/algorithms/`, and those of installed packs.

A pack is a distribution with entry points in the group `tinkergym.algorithms`: names of algorithms, and the
`module:Class` of each. A pack is imported when a job names its algorithm.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union

from pydantic import (
    ConfigDict,
    Field,
    SerializeAsAny,
    TypeAdapter,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.policy_gradient import PolicyGradient
from tinkergym.schema.refusals import Refusal
from tinkergym.trajectory.outcomes import Credits, StepOutcomes
from tinkergym.user_code.quoting import raised

GROUP = "tinkergym.algorithms"
_HOME = "tinkergym.algorithms"
_DEFAULT = "grpo"

INSTALL_PACK = "install the pack that has it here and where the service runs"

Validated = TypeVar("Validated")


def _built_in() -> Iterator[tuple[str, type[PolicyGradient]]]:
    for found in pkgutil.iter_modules(importlib.import_module(_HOME).__path__):
        module = importlib.import_module(f"{_HOME}.{found.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, PolicyGradient) and value.own_name():
                yield value.own_name(), value


BUILT_IN: Mapping[str, type[PolicyGradient]] = dict(
    sorted(_built_in(), key=lambda pair: (pair[0] != _DEFAULT, pair[0]))
)
_of_packs: dict[str, type[PolicyGradient]] = {}
"""Those that were imported."""
_stored: ContextVar[bool] = ContextVar("stored", default=False)
"""Whether the settings were accepted before, so that an algorithm may be missing here."""


class MissingAlgorithm(PolicyGradient):
    """An algorithm of a stored job whose pack is not installed here; its settings can be shown."""

    model_config = ConfigDict(extra="allow")

    name: str

    def credits(self, step: StepOutcomes) -> Credits:
        """Refuse to train."""
        raise InvalidRequestError(
            f"the algorithm {self.name!r} is not installed", hint=INSTALL_PACK, field="algorithm.name"
        )


def known_algorithms() -> list[type[PolicyGradient]]:
    """Return the classes of all algorithms that are built in or were imported."""
    return [*BUILT_IN.values(), *_of_packs.values()]


def default_algorithm() -> PolicyGradient:
    """Return the algorithm of a job that names none."""
    return BUILT_IN[_DEFAULT]()


def algorithm_named(name: str) -> type[PolicyGradient]:
    """Return the class of an algorithm; imports its pack if it is not built in.

    Raises:
        PydanticCustomError: There is no such algorithm here, or its pack is broken.
    """
    if known := BUILT_IN.get(name) or _of_packs.get(name):
        return known
    points = entry_points(group=GROUP)
    named = {point.value: point for point in points if point.name == name}
    if not named:
        known_names = sorted({*BUILT_IN, *points.names})
        expected = ", ".join(map(repr, known_names))
        context: dict[str, Any] = {"discriminator": "'name'", "tag": name, "expected_tags": expected}
        context |= {"tags": known_names, "hint": INSTALL_PACK}
        raise PydanticCustomError("union_tag_invalid", "{tag} is not one of {expected_tags}", context)
    if len(named) > 1:
        raise _broken(f"{name!r} is in several packs: {', '.join(map(_pack, named.values()))}", "keep one")
    (point,) = named.values()
    try:
        found = point.load()
    # A pack is foreign code; `sys.exit` at its import must not end the program either.
    except (Exception, SystemExit) as error:
        raise _broken(f"{name!r} is in {_pack(point)}, which cannot be imported: {raised(error)}") from error
    if not (isinstance(found, type) and issubclass(found, PolicyGradient) and found.own_name() == name):
        raise _broken(f"{name!r} is in {_pack(point)}, but {point.value} is no PolicyGradient of that name")
    return _of_packs.setdefault(name, found)


def forget_packs() -> None:
    """Look packs up again when they are named: some were installed or removed."""
    _of_packs.clear()


def packs_of(algorithms: Iterable[PolicyGradient]) -> dict[str, str]:
    """Return the distributions of the algorithms that are not built in, with their versions."""
    names = {one.own_name() for one in algorithms} - BUILT_IN.keys()
    points = [point for name in names for point in entry_points(group=GROUP, name=name)]
    return {point.dist.name: point.dist.version for point in points if point.dist}


def _broken(reason: str, hint: str = "repair the pack") -> PydanticCustomError:
    return Refusal("name", reason, hint, "broken_pack").in_validator()


def _pack(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value


def as_stored(settings: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Accept settings of an algorithm whose pack is not installed here, as a `MissingAlgorithm`."""
    token = _stored.set(True)
    try:
        return validate(settings)
    finally:
        _stored.reset(token)


def _validated(settings: Any, of_built_in: ValidatorFunctionWrapHandler) -> Any:
    if isinstance(settings, Mapping):
        settings = {"name": _DEFAULT, **settings}
    name = settings["name"] if isinstance(settings, dict) else getattr(settings, "name", None)
    if not isinstance(name, str) or name in BUILT_IN:
        return of_built_in(settings)
    try:
        found = algorithm_named(name)
    except PydanticCustomError:
        if not _stored.get():
            raise
        return MissingAlgorithm.model_construct(**dict(settings))
    return _with_built_in(found).validate_python(settings)


@cache
def _with_built_in(found: type[PolicyGradient]) -> TypeAdapter[PolicyGradient]:
    """Return what validates a pack's algorithm; not the class alone, so that errors name the same places."""
    return TypeAdapter(_union_of(*BUILT_IN.values(), found))


def _union_of(*algorithms: type[PolicyGradient]) -> Any:
    return Annotated[Union[algorithms], Field(discriminator="name")]  # noqa: UP007 - made of what there is


class _Members:
    """Tells the explanation of errors which classes the field may hold."""

    def members(self) -> list[type[PolicyGradient]]:
        return known_algorithms()


if TYPE_CHECKING:
    Algorithm = PolicyGradient
else:
    _Union = _union_of(*BUILT_IN.values())
    Algorithm = Annotated[_Union, WrapValidator(_validated), SerializeAsAny(), _Members()]
    """Settings without a name are GRPO's."""
