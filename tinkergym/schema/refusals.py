"""A refusal is data, from the check that finds a wrong setting to the person who reads about it.

Nothing parses its text: `field`, `reason`, `hint` and `code` stay apart all the way.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic_core import PydanticCustomError

from tinkergym.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a setting is rejected."""

    field: str
    """The dotted name of the setting within what was checked; empty for the whole of it."""
    reason: str
    hint: str = ""
    """What to do instead."""
    code: str = "invalid"
    """For programs; it stays when the wording changes."""

    def in_validator(self) -> PydanticCustomError:
        """Return this as what a validator raises; `setting_errors.explain` takes it out again."""
        return PydanticCustomError(self.code, "{reason}", {"reason": self.reason, "refusal": self})

    def error(self, kind: type[InvalidRequestError] = InvalidRequestError) -> InvalidRequestError:
        """Return this as the error that a caller sees."""
        return kind(self.reason, hint=self.hint, field=self.field, code=self.code)


def no_effect(field: str, wanted: str) -> Refusal:
    """Return the refusal of a setting that only takes effect with another one."""
    return Refusal(field, f"only takes effect with {wanted}", "set that too, or leave it out", "no_effect")
