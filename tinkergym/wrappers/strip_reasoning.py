"""StripReasoning: the environment sees the answer without the reasoning before it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs

from tinkergym.errors import InvalidRequestError


class StripReasoning(gym.Wrapper[Any, str, Any, str], RecordConstructorArgs):
    """Remove reasoning from each action before the inner environment sees it.

    Only the environment does not see the reasoning. Its tokens stay in the episode and are trained on, and
    the job's `reasoning` setting decides whether later turns show it to the model.

    Reasoning is everything between `open` and `close`; everything before a first `close` without
    an `open` (chat templates often end the prompt with the opening mark); and everything after an `open` that
    is never closed, so that a model cut off while reasoning has answered nothing.

    `info["metrics"]["reasoning_characters"]` counts the removed characters.

    Example:
        >>> env = StripReasoning(tg.make("math/Arithmetic-v0"))
        >>> env.step("<think>3 + 4 is 7.</think>7")  # the environment sees "7"
    """

    def __init__(
        self,
        env: gym.Env[Any, str],
        open: str = "<think>",  # noqa: A002 - the pair's plain names
        close: str = "</think>",
    ) -> None:
        """Wrap an environment.

        Args:
            env: The environment.
            open: The mark before the reasoning.
            close: The mark after it.

        Raises:
            InvalidRequestError: A mark is empty, or both are the same.
        """
        RecordConstructorArgs.__init__(self, open=open, close=close)
        super().__init__(env)
        for field, mark in (("open", open), ("close", close)):
            if not isinstance(mark, str) or not mark:
                raise InvalidRequestError("must be text of one character or more", field=field)
        if open == close:
            raise InvalidRequestError("must differ from the opening mark", field="close")
        self._open, self._close = open, close

    def step(self, action: str) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Return the action without its reasoning."""
        answer = without_reasoning(action, self._open, self._close)
        observation, reward, terminated, truncated, info = self.env.step(answer)
        metrics = {**info.get("metrics", {}), "reasoning_characters": float(len(action) - len(answer))}
        return observation, reward, terminated, truncated, {**info, "metrics": metrics}


def without_reasoning(text: str, open: str, close: str) -> str:  # noqa: A002 - as above
    """Return the text without its reasoning; space around the rest goes too, if there was any reasoning."""
    if open not in text and close not in text:
        return text
    first_close, first_open = text.find(close), text.find(open)
    position = 0
    if first_close >= 0 and not 0 <= first_open < first_close:
        position = first_close + len(close)
    kept = []
    while True:
        begin = text.find(open, position)
        kept.append(text[position:] if begin < 0 else text[position:begin])
        end = text.find(close, begin) if begin >= 0 else -1
        if end < 0:
            return "".join(kept).strip()
        position = end + len(close)
