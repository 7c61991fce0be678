"""LLMJudge: a reward term that asks a model behind an OpenAI-style URL to rate an answer.

If the judge does not respond, or does not return a score, this is an error with a cause and never a reward of
0: the episode ends as `invalid_reward`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Any

from tinkergym.errors import InvalidRequestError, InvalidRewardError, NoCompletionError
from tinkergym.network.chat_endpoint import ChatEndpoint
from tinkergym.network.model_urls import origin_of, refused_origin
from tinkergym.rubrics.rubric import Term

ALLOWED_VARIABLE = "TINKERGYM_JUDGE_URLS"
"""Set by a service for its processes: a JSON list of allowed origins for judges. Without the variable, as in
a client, all are allowed."""

KEY_VARIABLE = "TINKERGYM_JUDGE_KEY"

DEFAULT_PROMPT = (
    "You grade answers. Read the task, the answer and, if there is one, the reference answer. Reply with a "
    "number from 0 (wrong) to 1 (right) and nothing else."
)
_MOST_SHOWN = 300
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class LLMJudge:
    """Asks a model to score an answer.

    Example:
        >>> judge = LLMJudge("https://judge.example/v1", model="small-judge", api_key=key)
        >>> rubric = Rubric([judge.term(name="quality")])
        >>> rubric.score(task="Name a prime.", answer="7").reward
        0.9
    """

    def __init__(
        self,
        url: str,
        *,
        model: str,
        api_key: str = "",
        prompt: str = DEFAULT_PROMPT,
        lowest: float = 0.0,
        highest: float = 1.0,
        timeout_seconds: float = 30.0,
        attempts: int = 3,
        pause_seconds: float = 1.0,
    ) -> None:
        """Configure the judge; nothing is sent yet.

        Args:
            url: The API's base, such as `https://host/v1`; `/chat/completions` is added.
            model: The judge's model name.
            api_key: Sent as a bearer token, and never shown.
            prompt: The judge's instructions.
            lowest: The lowest valid score.
            highest: The highest valid score.
            timeout_seconds: Timeout of one request.
            attempts: How often a request is sent while the judge is overloaded or unreachable.
            pause_seconds: Pause before the second attempt; doubles for each further one.

        Raises:
            InvalidRequestError: The URL is not http or https, or contains a user name or password; the key is
                not valid in a header; or a number is out of range.
        """
        if not lowest < highest:
            raise InvalidRequestError("lowest must be below highest", field="lowest")
        self._endpoint = ChatEndpoint(
            url,
            model=model,
            api_key=api_key,
            timeout_seconds=timeout_seconds,
            attempts=attempts,
            pause_seconds=pause_seconds,
        )
        self.url, self.model, self.prompt = self._endpoint.url, model, prompt
        self._lowest, self._highest = lowest, highest

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> LLMJudge:
        """Make a judge from an environment's argument `judge`: url, model, and perhaps api_key and others.

        Outside a service, a missing key is read from TINKERGYM_JUDGE_KEY.

        Raises:
            InvalidRequestError: A setting is missing or unknown.
        """
        given = dict(settings)
        # In a service's process, the variable belongs to the operator, not to the owner of the job.
        if ALLOWED_VARIABLE not in os.environ:
            given.setdefault("api_key", os.environ.get(KEY_VARIABLE, ""))
        try:
            return cls(**given)
        except TypeError as error:
            raise InvalidRequestError(str(error).replace("LLMJudge.__init__() ", ""), field="judge") from None

    def __repr__(self) -> str:
        return f"<LLMJudge {self.model} at {origin_of(self.url)}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            "a judge cannot be pickled, because that would include its key; create it where it is used"
        )

    def term(self, name: str = "judge", *, weight: float = 1.0, gate: bool = False) -> Term:
        """Return the judge as a term of a rubric; it uses the facts `answer`, `task` and `reference`."""
        return Term(name, self.score, weight, gate)

    def score(self, answer: str, task: str = "", reference: str = "") -> float:
        """Return the judge's score of an answer.

        Raises:
            InvalidRewardError: It did not respond, or did not return a score. The message says which.
        """
        said = self.ask(_question(answer, task, reference))
        found = _NUMBER.findall(said)
        score = float(found[-1]) if found else math.nan
        if len(found) != 1 or not self._lowest <= score <= self._highest:
            raise InvalidRewardError(
                f"{self!r} should answer with a number from {self._lowest:g} to {self._highest:g} but said "
                f"{said[:_MOST_SHOWN]!r}",
                hint="make the judge's prompt stricter, or use a larger model",
                field="judge",
            )
        return score

    def ask(self, question: str) -> str:
        """Return the judge's response to a question.

        Raises:
            InvalidRewardError: It did not respond.
        """
        _refuse_unlisted(self.url)
        messages = [{"role": "system", "content": self.prompt}, {"role": "user", "content": question}]
        try:
            return self._endpoint.complete(messages, temperature=0)
        except NoCompletionError as error:
            raise InvalidRewardError(
                f"{self!r} gave no score: {error.message}",
                hint="see whether the judge's service answers",
                field="judge",
            ) from None


def _refuse_unlisted(url: str) -> None:
    """Refuse a judge that this process may not use.

    Raises:
        InvalidRewardError: It is not on the operator's list.
    """
    origin = refused_origin(ALLOWED_VARIABLE, url)
    if origin is not None:
        raise InvalidRewardError(
            f"this service does not allow the judge {origin}",
            hint=f"ask the operator to add {origin!r} to judge_urls, or play the episodes with "
            f"rollout='client'",
            field="judge",
        )


def _question(answer: str, task: str, reference: str) -> str:
    parts = {"Task": task, "Reference answer": reference, "Answer": answer}
    return "\n\n".join(f"{name}:\n{text}" for name, text in parts.items() if text or name == "Answer")
