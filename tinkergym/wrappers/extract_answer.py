r"""ExtractAnswer: the environment sees only the marked answer of a longer text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs

from tinkergym.errors import InvalidRequestError

_BOXED = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)


class ExtractAnswer(gym.Wrapper[Any, str, Any, str], RecordConstructorArgs):
    r"""Pass on only what a policy marked as its answer.

    The last mark counts, because models often write a draft first. Without a mark the environment sees "", or
    with `missing="whole"` the whole text, and `info["metrics"]["answer_missing"]` is 1.

    Example:
        >>> env = ExtractAnswer(tg.make("math/Arithmetic-v0"), boxed=True)
        >>> env.step(r"Three and four make \boxed{7}.")  # the environment sees "7"
    """

    def __init__(
        self,
        env: gym.Env[Any, str],
        *,
        pattern: str | None = None,
        tag: str | None = None,
        boxed: bool = False,
        missing: str = "empty",
    ) -> None:
        r"""Wrap an environment; pass exactly one of `pattern`, `tag` and `boxed`.

        Args:
            env: The environment.
            pattern: A regular expression of Python; the answer is its first group, or the whole match if it
                has none. `.` also matches line breaks. It is searched in arbitrary text, so avoid patterns
                that backtrack excessively.
            tag: A name, as `answer` for `<answer>7</answer>`.
            boxed: The answer is in `\boxed{...}`, in which braces may nest.
            missing: What the environment sees if there is no answer: `empty` or `whole`.

        Raises:
            InvalidRequestError: None or several were given, or one is invalid; see `field`.
        """
        RecordConstructorArgs.__init__(self, pattern=pattern, tag=tag, boxed=boxed, missing=missing)
        super().__init__(env)
        if (pattern is not None) + (tag is not None) + bool(boxed) != 1:
            raise InvalidRequestError(
                "exactly one of pattern, tag and boxed is needed",
                hint="pass one of pattern, tag and boxed=True",
                field="pattern",
            )
        if missing not in ("empty", "whole"):
            raise InvalidRequestError(f"must be 'empty' or 'whole', not {missing!r}", field="missing")
        self._whole_if_missing = missing == "whole"
        self._find: Callable[[str], str | None] = last_boxed
        if pattern is not None:
            self._find = _Pattern(pattern)
        elif tag is not None:
            self._find = _Tag(tag)

    def step(self, action: str) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Return the answer as the action."""
        answer = self._find(action)
        missing = answer is None
        if answer is None:
            answer = action if self._whole_if_missing else ""
        observation, reward, terminated, truncated, info = self.env.step(answer)
        metrics = {**info.get("metrics", {}), "answer_missing": float(missing)}
        return observation, reward, terminated, truncated, {**info, "metrics": metrics}


def last_boxed(text: str) -> str | None:
    r"""Return the contents of the last complete `\boxed{...}`, stripped; None if there is none.

    In one pass, so a text of opening braces takes no longer than any other.
    """
    begins: list[int | None] = []
    found: str | None = None
    for match in _BOXED.finditer(text):
        mark = match.group()
        if mark.startswith("\\boxed"):
            begins.append(match.end())
        elif mark == "{":
            begins.append(None)
        elif mark == "}" and begins:
            begin = begins.pop()
            if begin is not None:
                found = text[begin : match.start()].strip()
    return found


class _Pattern:
    """The last match of a regular expression."""

    def __init__(self, pattern: str) -> None:
        try:
            self._pattern = re.compile(pattern, re.DOTALL)
        except (re.error, TypeError) as error:
            raise InvalidRequestError(
                f"is not a valid regular expression: {error}", field="pattern"
            ) from error
        self._group = min(1, self._pattern.groups)

    def __call__(self, text: str) -> str | None:
        found: str | None = None
        for match in self._pattern.finditer(text):
            # A group that did not participate in the match marks nothing.
            found = match.group(self._group) if match.group(self._group) is not None else found
        return found


class _Tag:
    """The last closed pair of tags."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not re.fullmatch(r"[\w:.-]+", name):
            raise InvalidRequestError(f"{name!r} is not a valid tag name", field="tag")
        self._open, self._close = f"<{name}>", f"</{name}>"

    def __call__(self, text: str) -> str | None:
        end = text.rfind(self._close)
        begin = text.rfind(self._open, 0, end) if end >= 0 else -1
        return text[begin + len(self._open) : end].strip() if begin >= 0 else None
