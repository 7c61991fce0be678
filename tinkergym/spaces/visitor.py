"""A walk over Gymnasium's spaces and ours: one method for each kind that has a JSON form."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from gymnasium import spaces

from tinkergym.errors import InvalidSpaceError
from tinkergym.spaces.chat import Chat
from tinkergym.spaces.image import Image
from tinkergym.spaces.numbers import DTYPES
from tinkergym.spaces.text import Text
from tinkergym.user_code.quoting import quoted

Result = TypeVar("Result")

# By exact type: a subclass from elsewhere may have another meaning.
KINDS: dict[type, str] = {
    Text: "text",
    spaces.Text: "characters",
    Chat: "chat",
    Image: "image",
    spaces.Box: "box",
    spaces.Discrete: "discrete",
    spaces.MultiDiscrete: "multi_discrete",
    spaces.MultiBinary: "multi_binary",
    spaces.Dict: "dict",
    spaces.Tuple: "tuple",
    spaces.Sequence: "sequence",
    spaces.OneOf: "one_of",
}
"""The method of a visitor for each type, which is also its name in a document."""


class SpaceVisitor(Generic[Result]):
    """Subclasses have a method for each of `KINDS`, which visits the spaces inside by itself."""

    def visit(self, space: spaces.Space[Any], *rest: Any) -> Result:
        """Call the method for a space.

        Raises:
            InvalidSpaceError: The space has no JSON form.
        """
        kind = KINDS.get(type(space))
        if kind is None or (kind == "sequence" and space.stack):  # type: ignore[attr-defined]
            raise unsupported(space)
        if kind == "dict" and not all(isinstance(key, str) for key in space.spaces):  # type: ignore[attr-defined]
            raise unsupported(space)
        result: Result = getattr(self, kind)(space, *rest)
        return result


def dtype_name(space: spaces.Space[Any]) -> str:
    """Return the name of a space's type of numbers.

    Raises:
        InvalidSpaceError: It is not a native one.
    """
    if space.dtype not in DTYPES:
        raise unsupported(space)
    return DTYPES[space.dtype]


def unsupported(space: object) -> InvalidSpaceError:
    """Return the error for a space without a JSON form."""
    if type(space) is spaces.Sequence:  # A stacked sequence; others have a JSON form.
        return InvalidSpaceError(
            f"{quoted(space)} has no JSON form: its values do not contain their length",
            hint="use stack=False, whose values are tuples",
        )
    kinds = ", ".join(sorted(kind.__name__ for kind in KINDS if kind is not spaces.Text))
    return InvalidSpaceError(
        f"{quoted(space)} ({type(space).__module__}.{type(space).__qualname__}) has no JSON form",
        hint=f"supported: {kinds}, with string keys and native number types",
    )
