"""Prompts as a script writes them, and completions of them."""

from __future__ import annotations

import operator
import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tinkergym.agent.renderer import Renderer
from tinkergym.errors import InvalidRequestError, from_wire
from tinkergym.messages import Message, observation_messages
from tinkergym.remote.ask import sampled_together
from tinkergym.remote.call_queue import PATIENCE_SECONDS
from tinkergym.remote.http_sampler import HttpSampler
from tinkergym.remote.image_upload import ImageUpload
from tinkergym.remote.transport import Connection
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest
from tinkergym.trajectory.content_parts import ImageSpan

Prompt = str | Sequence[Message] | Sequence[int]


class PromptSampler:
    """Samples completions of prompts. Images reach the service before the ids that name them. Thread-safe."""

    def __init__(self, connection: Connection, renderer: Renderer) -> None:
        """Sample through a connection, which is used from the first sample on.

        Args:
            connection: The connection to the service.
            renderer: Turns messages into token ids.
        """
        self._connection, self._renderer = connection, renderer
        self._lock = threading.Lock()
        self._sampler: HttpSampler | None = None
        self.images = ImageUpload(connection, "/v1/images")
        """Sends images that the service does not have."""

    def close(self) -> None:
        """Stop sampling."""
        if self._sampler is not None:
            self._sampler.close()

    def read(self, prompt: Prompt) -> tuple[list[int], list[ImageSpan]]:
        """Return a prompt's token ids and the positions of its images, which are sent."""
        if isinstance(prompt, str):
            return list(self._renderer.start([{"role": "user", "content": prompt}])), []
        if not all(isinstance(part, Mapping) for part in prompt):
            return _token_ids(prompt), []
        messages: list[Message] = [dict(message) for message in prompt]  # type: ignore[arg-type, misc]
        if all(isinstance(message.get("content"), str) for message in messages):
            return list(self._renderer.start(messages)), []
        messages = observation_messages(messages)
        ids = self._renderer.start(messages)
        images = self._renderer.spans(ids, messages)
        # Now: pixels are only referenced by these messages.
        self.images.send(image.sha256 for image in images)
        return list(ids), images

    def completions(self, requests: list[SampleRequest], *, together: bool) -> list[Completion]:
        """Sample, and return the completions in the order of their requests.

        Args:
            requests: What to sample.
            together: Sample them as one separate batch.
        """
        if together:
            self.images.send(image.sha256 for request in requests for image in request.images)
            answers = sampled_together(self._connection, requests, patience_seconds=PATIENCE_SECONDS)
            return [answers[request.request_id] for request in requests]
        with self._lock:
            if self._sampler is None:
                self._sampler = HttpSampler(
                    self._connection,
                    "/v1/sample",
                    images=self.images,
                    patience_seconds=PATIENCE_SECONDS,
                )
            sampler = self._sampler
        arrived: queue.Queue[Completion | SampleFailure] = queue.Queue()

        def deliver(answers: Sequence[Completion | SampleFailure]) -> None:
            for answer in answers:
                arrived.put(answer)

        sampler.submit(requests, deliver)
        found: dict[str, Completion] = {}
        while len(found) < len(requests):
            # Without a time limit: the sampler answers each request, when its patience ends at the latest.
            one = arrived.get()
            if isinstance(one, SampleFailure):
                raise from_wire(one.error.model_dump())
            found[one.request_id] = one
        return [found[request.request_id] for request in requests]


def _token_ids(prompt: Sequence[Any]) -> list[int]:
    """Convert a prompt of integers, which may be NumPy's."""
    ids = []
    for place, token in enumerate(prompt):
        try:
            ids.append(operator.index(token))
        except TypeError:
            raise InvalidRequestError(
                f"element {place} of the prompt is {token!r}, which is not a token id",
                hint="pass a text, a list of messages, or a list of integers",
                field="prompt",
            ) from None
    return ids
