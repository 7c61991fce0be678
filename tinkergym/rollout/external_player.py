"""ExternalPlayer: a model behind an OpenAI-style URL at a game's table.

It keeps the conversation of one seat. In a service it only calls what the operator lists, and gets its key
from the service's storage.
"""

from __future__ import annotations

import os
from typing import Any

from tinkergym.errors import NoCompletionError
from tinkergym.messages import Message, assistant, messages_to_answer, opening_messages, plain_text
from tinkergym.network.chat_endpoint import ChatEndpoint
from tinkergym.network.model_urls import refused_origin
from tinkergym.schema.fixed_players import External

ALLOWED_VARIABLE = "TINKERGYM_OPPONENT_URLS"
"""Set by a service for its processes: a JSON list of origins, the only ones that may be called. Without the
variable, as in a client, any may be called."""

KEY_VARIABLE = "TINKERGYM_OPPONENT_KEY"

_ATTEMPTS = 4


class ExternalPlayer:
    """Plays one agent of one game by calling an external model for each move."""

    def __init__(self, model: External, *, system_prompt: str | None = None) -> None:
        """Start; nothing is sent yet.

        Args:
            model: The model and how to call it.
            system_prompt: The game's own system prompt, for a player without one.
        """
        self._model, self._prompt = model, system_prompt
        key = model.api_key
        # A variable of a service's process belongs to its operator, not to the job's owner.
        if not key and ALLOWED_VARIABLE not in os.environ:
            key = os.environ.get(KEY_VARIABLE, "")
        self._endpoint = ChatEndpoint(
            model.url,
            model=model.model,
            api_key=key,
            timeout_seconds=model.timeout_seconds,
            total_seconds=model.timeout_seconds,
            attempts=_ATTEMPTS,
        )
        self._conversation: list[Message] = []

    def act(self, agent: str, observation: Any) -> str:
        """Return the model's answer to what happened since its last one.

        Raises:
            NoCompletionError: It did not answer in time, its answer is empty, or it may not be called.
        """
        del agent
        _refuse_unlisted(self._model.url)
        shown = messages_to_answer(observation)
        if not self._conversation:
            shown = opening_messages(
                shown, job_prompt=self._model.system_prompt, environment_prompt=self._prompt
            )
        self._conversation += shown
        sent = [{"role": one["role"], "content": plain_text(one)} for one in self._conversation]
        answer = self._endpoint.complete(
            sent, temperature=self._model.temperature, max_tokens=self._model.max_tokens
        )
        if not answer.strip():
            raise NoCompletionError("its answer is empty")
        self._conversation.append(assistant(answer))
        return answer


def _refuse_unlisted(url: str) -> None:
    """Raise an error for a model that this process may not call.

    Raises:
        NoCompletionError: It is not on the operator's list.
    """
    origin = refused_origin(ALLOWED_VARIABLE, url)
    if origin is not None:
        raise NoCompletionError(
            f"this service asks no model at {origin}",
            hint=f"let the operator add {origin!r} to opponent_urls",
        )
