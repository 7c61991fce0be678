"""SystemPrompt: the text before the first observation."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs

from tinkergym.errors import InvalidRequestError
from tinkergym.messages import is_unicode


class SystemPrompt(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Set an environment's system prompt, replacing its own.

    The prompt is metadata, not an observation: the loop puts it where the model's chat template expects it. A
    job's own `system_prompt` still takes precedence.

    Example:
        >>> env = SystemPrompt(tg.make("math/Arithmetic-v0"), "Answer with the number only.")
    """

    def __init__(self, env: gym.Env[Any, Any], text: str) -> None:
        """Set the prompt.

        Raises:
            InvalidRequestError: It is not Unicode text.
        """
        RecordConstructorArgs.__init__(self, text=text)
        super().__init__(env)
        if not isinstance(text, str) or not is_unicode(text):
            raise InvalidRequestError("must be Unicode text without lone surrogates", field="text")
        self.metadata = {**env.metadata, "system_prompt": text}
