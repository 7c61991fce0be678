"""Collects vLLM's outputs for one request into a completion."""

from __future__ import annotations

import time
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from tinkergym.agent.stop_strings import StopStrings, model_tokenizer, stopped_text

Message = dict[str, Any]

_PART_SECONDS = 0.05
"""How long a stream waits between two parts, except for the first."""


class Collected:
    """The outputs of one request so far: one in total, or with stop strings about one per token."""

    def __init__(self, message: Message, model_directory: Path) -> None:
        """Begin before the first output.

        Args:
            message: The request.
            model_directory: The model whose tokenizer is used for stop strings.
        """
        self._message = message
        self._stops: StopStrings | None = None
        if message["stop_strings"]:
            self._stops = StopStrings(model_tokenizer(model_directory), message["stop_strings"])
        self._tokens: list[int] = []
        self._places: list[Mapping[int, Any]] = []
        self._of_prompt: list[Mapping[int, Any] | None] = []
        self._reused = 0
        self.reason = ""
        """Why vLLM ended; empty if a stop string did."""
        self.complete = False
        self._in_parts = 0, 0.0
        """How many tokens were in parts, and when the last was made."""

    def take(self, output: Any) -> None:
        """Add vLLM's next output."""
        completion = output.outputs[0]
        self._of_prompt += output.prompt_logprobs or []
        self._reused = max(self._reused, output.num_cached_tokens or 0)
        tokens = list(completion.token_ids)
        for token, place in zip(tokens, completion.logprobs or [], strict=True):
            self._tokens.append(token)
            self._places.append(place)
            if self._stops is not None and self._stops.completed_by(token):
                self.complete = True
                # Tokens sampled after it are not part of the completion.
                return
        if output.finished:
            self.complete, self.reason = True, str(completion.finish_reason)

    def part(self) -> Message | None:
        """Return the tokens since the last part, unless that is too recent."""
        now = time.monotonic()
        start, begun = self._in_parts
        is_due = not start or now - begun >= _PART_SECONDS
        if self.complete or len(self._tokens) == start or not is_due:
            return None  # The completion has them.
        self._in_parts = len(self._tokens), now
        places = self._places[start:]
        part: Message = {"start": start, **self._sampled(start)}
        if self._message["top_logprobs"]:
            part["top_logprobs"] = [_likeliest(place, self._message["top_logprobs"]) for place in places]
        return part if start else {**part, **self._scored()}

    def _sampled(self, start: int = 0) -> Message:
        tokens, places = self._tokens[start:], self._places[start:]
        logprobs = [place[token].logprob for place, token in zip(places, tokens, strict=True)]
        return {"tokens": tokens, "logprobs": logprobs}

    def answer(self) -> Message:
        """Return the completion."""
        message = self._message
        if message["structured"] and self.reason == "error":
            return {"invalid": "it cannot be compiled to a grammar"}
        if self.reason not in {"", "stop", "length"}:
            return {"error": f"vLLM ended the request with {self.reason!r}"}
        answer = {
            **self._sampled(),
            "reason": self.reason or "stop",
            "reused": self._reused,
        }
        if self._stops is not None:
            answer["text"] = stopped_text(self._stops, self._tokens, message["stop"])
        if message["top_logprobs"]:
            answer["top_logprobs"] = [_likeliest(place, message["top_logprobs"]) for place in self._places]
        is_scored, _ = self._in_parts  # By the first part: up to 21 values for each token of the prompt.
        return answer if is_scored else {**answer, **self._scored()}

    def _scored(self) -> Message:
        """Return the scores of the prompt, if they are wanted."""
        count = self._message["prompt_logprobs"]
        if count is None:
            return {}
        places = list(zip(self._of_prompt, self._message["prompt"], strict=True))
        found: Message = {
            # None for the first token, which nothing predicts.
            "prompt_logprobs": [place and place[token].logprob for place, token in places],
            "prompt_ranks": [place and place[token].rank for place, token in places],
        }
        if count:
            found["top_prompt_logprobs"] = [place and _likeliest(place, count) for place, _ in places]
        return found


def _likeliest(place: Mapping[int, Any], count: int) -> list[tuple[int, float]]:
    """Return the most likely tokens; vLLM also lists the sampled token, and truncated ones with -inf."""
    ranked = sorted(place.items(), key=lambda item: item[1].rank)
    return [(token, one.logprob) for token, one in ranked[:count] if isfinite(one.logprob)]
