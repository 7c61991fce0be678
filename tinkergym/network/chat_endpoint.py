"""ChatEndpoint: a client for a model behind an OpenAI-style URL.

It is used for judges and for players, and depends on neither. Keys are sent but never shown.
"""

from __future__ import annotations

import json
import math
import ssl
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tinkergym.errors import InvalidRequestError, NoCompletionError
from tinkergym.network.model_urls import check_key, check_url, origin_of

if TYPE_CHECKING:
    import httpx

MOST_TIMEOUT_SECONDS = 600.0
"""An environment's own time limit ends the wait for an answer, but not the waiting thread."""
_MOST_ATTEMPTS, _MOST_PAUSE_SECONDS = 10, 60.0
_MOST_BYTES = 2**20
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})


class ChatEndpoint:
    """The address of a model for chat completions.

    Example:
        >>> model = ChatEndpoint("https://models.example/v1", model="small", api_key=key)
        >>> model.complete([{"role": "user", "content": "Name a prime."}])
        '7'
    """

    def __init__(
        self,
        url: str,
        *,
        model: str,
        api_key: str = "",
        timeout_seconds: float = 30.0,
        attempts: int = 3,
        pause_seconds: float = 1.0,
        total_seconds: float = math.inf,
    ) -> None:
        """Configure the model; nothing is sent yet.

        Args:
            url: The API's base, such as `https://host/v1`; `/chat/completions` is added.
            model: The model's name there.
            api_key: Sent as a bearer token, and never shown.
            timeout_seconds: Time limit per request.
            attempts: How often a request is sent while the model is overloaded or unavailable.
            pause_seconds: Pause before the second attempt; it doubles before each further one.
            total_seconds: Time limit for all attempts together.

        Raises:
            InvalidRequestError: The URL is not an http or https URL, or contains a user name or password; the
                key is not valid in a header; or a number is out of range.
        """
        check_url(url)
        check_key(api_key)
        if (
            not (1 <= attempts <= _MOST_ATTEMPTS and 0 < timeout_seconds <= MOST_TIMEOUT_SECONDS)
            or not 0 <= pause_seconds <= _MOST_PAUSE_SECONDS
            or total_seconds <= 0
        ):
            raise InvalidRequestError(
                f"attempts must be from 1 to {_MOST_ATTEMPTS}, timeout_seconds above 0 and at most "
                f"{MOST_TIMEOUT_SECONDS:g}, and pause_seconds from 0 to {_MOST_PAUSE_SECONDS:g}"
            )
        self.url, self.model, self._key = url.rstrip("/"), model, api_key
        self._timeout, self._attempts, self._pause = timeout_seconds, attempts, pause_seconds
        self._total = total_seconds

    def __repr__(self) -> str:
        return f"<ChatEndpoint {self.model} at {origin_of(self.url)}>"

    def __reduce__(self) -> Any:
        raise TypeError("an endpoint is not pickled, as its key would be; make it where it is used")

    def complete(self, messages: Sequence[Mapping[str, Any]], **settings: Any) -> str:
        """Return the model's completion, which may be empty.

        Args:
            messages: The conversation.
            **settings: More fields of the request, such as `temperature`.

        Raises:
            NoCompletionError: It did not respond in time, or the response is not a completion.
        """
        body = {"model": self.model, **settings, "messages": list(messages)}
        answer = self._post(json.dumps(body).encode())
        try:
            said = json.loads(answer)["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError):
            said = None
        if not isinstance(said, str):
            raise NoCompletionError("it answered something that is not a chat completion")
        return said

    def _post(self, body: bytes) -> bytes:
        import httpx  # Most environments ask no model.

        # Without the environment's proxies, so that the checked address is the one that is used. A redirect
        # would bypass an operator's list and forward the key.
        options: dict[str, Any] = {
            "trust_env": False,
            "follow_redirects": False,
            "verify": self.url.startswith("https:") and ssl.create_default_context(),
        }
        ends_at, cause = time.monotonic() + self._total, ""
        for attempt in range(self._attempts):
            pause = self._pause * 2 ** (attempt - 1) if attempt else 0.0
            if time.monotonic() + pause >= ends_at:
                break
            time.sleep(pause)
            try:
                with httpx.Client(**options) as client:
                    return self._sent(client, body, min(ends_at, time.monotonic() + self._timeout))
            except httpx.HTTPStatusError as error:
                cause = f"it answered with status {error.response.status_code}"
                if error.response.status_code not in _RETRIED:
                    break
            except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
                cause = str(error) or type(error).__name__
        raise NoCompletionError(cause or "there was no time to ask")

    def _sent(self, client: httpx.Client, body: bytes, ends_at: float) -> bytes:
        """Send a request and read the whole response; a slow sender does not get more time."""
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        seconds = max(0.001, ends_at - time.monotonic())
        url, answer = f"{self.url}/chat/completions", bytearray()
        with client.stream("POST", url, content=body, headers=headers, timeout=seconds) as response:
            response.raise_for_status()
            for piece in response.iter_raw():
                answer += piece
                if len(answer) > _MOST_BYTES:
                    raise NoCompletionError(f"it answered over {_MOST_BYTES} bytes")
                if time.monotonic() >= ends_at:
                    raise TimeoutError("timed out")
        return bytes(answer)
