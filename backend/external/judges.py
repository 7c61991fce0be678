"""Judges for the service's environments: which are allowed, and where their keys are stored.

An environment takes its judge as the argument `judge`, see `LLMJudge.of`. The key is a secret of the job's
owner: it is stored like the tokens of environment servers, and a job has a name instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backend.external import environment_tokens
from backend.external.environment_tokens import PutSecret, ReadSecret
from tinkergym.errors import InvalidRequestError
from tinkergym.network import model_urls
from tinkergym.network.model_urls import origin_of
from tinkergym.rubrics.llm_judge import ALLOWED_VARIABLE
from tinkergym.schema.jobs.parts import EnvironmentRef

_FIELD = "environment.kwargs.judge"


def judge_of(ref: EnvironmentRef) -> Mapping[str, Any] | None:
    """Return the environment's judge, if it has one."""
    judge = ref.kwargs.get("judge")
    return judge if isinstance(judge, Mapping) and "url" in judge else None


def check_listed(ref: EnvironmentRef, listed: Sequence[str]) -> None:
    """Check that the operator allows an environment's judge. Does no networking.

    Args:
        ref: Reference of an environment that the service plays.
        listed: `ServiceConfig.judge_urls`.

    Raises:
        InvalidRequestError: It is not listed, or its URL or key is invalid.
    """
    judge = judge_of(ref)
    if judge is None:
        return
    if not isinstance(judge["url"], str) or not isinstance(judge.get("api_key", ""), str):
        raise InvalidRequestError("url and api_key must be strings", field=_FIELD)
    try:
        origin = origin_of(judge["url"])
    except ValueError:  # A port that is not a number.
        origin = ""
    if "@" in judge["url"] or origin not in listed:
        raise InvalidRequestError(
            "this service does not allow a judge at this URL",
            hint=f"ask the operator to add {origin!r} to judge_urls, or play the episodes with "
            f"rollout='client'",
            field=f"{_FIELD}.url",
        )


def refuse_key(ref: EnvironmentRef) -> None:
    """Refuse a judge's key where it could not be stored.

    Raises:
        InvalidRequestError: The environment's judge has one.
    """
    judge = judge_of(ref)
    if judge is not None and judge.get("api_key"):
        raise InvalidRequestError(
            "the service cannot provide keys where this is played",
            hint="leave it out, and set TINKERGYM_JUDGE_KEY in the process that plays the episodes",
            field=f"{_FIELD}.api_key",
        )


def without_key(ref: EnvironmentRef) -> EnvironmentRef:
    """Return the reference without its judge's key."""
    judge = judge_of(ref)
    if judge is None:
        return ref
    shown = {name: value for name, value in judge.items() if name != "api_key"}
    return EnvironmentRef(id=ref.id, kwargs={**ref.kwargs, "judge": shown})


def put_away(ref: EnvironmentRef, store: PutSecret) -> EnvironmentRef:
    """Return the reference with its judge's key, if it has one, replaced by the key's name."""
    return _with_key(ref, lambda secret: environment_tokens.put_away(secret, store))


def fetch(ref: EnvironmentRef, read: ReadSecret) -> EnvironmentRef:
    """Return the reference with the key that `put_away` took. Only for references out of the store.

    Raises:
        ConfigError: The key is gone.
    """
    return _with_key(ref, lambda secret: environment_tokens.fetch(secret, read))


def as_secret(ref: EnvironmentRef) -> EnvironmentRef:
    """Return a reference with the judge's key as its `token`, which is how tokens are looked up."""
    key = (judge_of(ref) or {}).get("api_key")
    return EnvironmentRef(id=ref.id, kwargs={} if key is None else {"token": key})


def allow_only(listed: Sequence[str]) -> None:
    """Allow these judges, and no others, to environments of this process and its children."""
    model_urls.allow_only(ALLOWED_VARIABLE, listed)


def _with_key(ref: EnvironmentRef, change: Callable[[EnvironmentRef], EnvironmentRef]) -> EnvironmentRef:
    judge = judge_of(ref)
    if judge is None or not judge.get("api_key"):
        return ref
    changed = change(as_secret(ref)).kwargs.get("token", "")
    return EnvironmentRef(id=ref.id, kwargs={**ref.kwargs, "judge": {**judge, "api_key": changed}})
