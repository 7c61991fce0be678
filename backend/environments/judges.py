"""Judges that environments of the service may ask: which are allowed, and where their keys are kept.

An environment takes its judge as the argument `judge`, see `LLMJudge.of`. The key is a secret of the job's
owner: it is stored as the tokens of environment servers are, and a job holds a name in its place.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backend.environments.tokens import EnvTokens
from tinkergym.chat_endpoint import origin_of
from tinkergym.errors import InvalidRequestError
from tinkergym.rubrics.llm_judge import ALLOWED_VARIABLE
from tinkergym.schema.job_spec import EnvironmentRef

_FIELD = "environment.kwargs.judge"


def judge_of(ref: EnvironmentRef) -> Mapping[str, Any] | None:
    """Return the judge that an environment is given, if it is given one."""
    judge = ref.kwargs.get("judge")
    return judge if isinstance(judge, Mapping) and "url" in judge else None


def check_listed(ref: EnvironmentRef, listed: Sequence[str]) -> None:
    """Check that the operator allows an environment's judge. Asks no network.

    Args:
        ref: Of an environment that the service plays.
        listed: `ServiceConfig.judge_urls`.

    Raises:
        InvalidRequestError: It is not listed, or its URL or key is not one.
    """
    judge = judge_of(ref)
    if judge is None:
        return
    if not isinstance(judge["url"], str) or not isinstance(judge.get("api_key", ""), str):
        raise InvalidRequestError("url and api_key must be texts", field=_FIELD)
    try:
        origin = origin_of(judge["url"])
    except ValueError:  # a port that is not a number
        origin = ""
    if "@" in judge["url"] or origin not in listed:
        raise InvalidRequestError(
            "this service asks no judge at this URL",
            hint=f"let the operator add {origin!r} to judge_urls, or play the episodes with rollout='client'",
            field=f"{_FIELD}.url",
        )


def refuse_key(ref: EnvironmentRef) -> None:
    """Refuse a judge's key where nobody would keep it.

    Raises:
        InvalidRequestError: The environment's judge has one.
    """
    judge = judge_of(ref)
    if judge is not None and judge.get("api_key"):
        raise InvalidRequestError(
            "this is played where the service hands out no keys",
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


def put_away(ref: EnvironmentRef, tokens: EnvTokens, tenant_id: str) -> EnvironmentRef:
    """Return the reference with its judge's key, if it has one, replaced by the key's name."""
    return _with_key(ref, lambda secret: tokens.put_away(secret, tenant_id))


def fetch(ref: EnvironmentRef, tokens: EnvTokens) -> EnvironmentRef:
    """Return the reference with the key that `put_away` took. Only for references out of the store.

    Raises:
        ConfigError: The key's file is gone.
    """
    return _with_key(ref, tokens.fetch)


def as_secret(ref: EnvironmentRef) -> EnvironmentRef:
    """Return a reference whose `token` is the judge's key, as tokens are looked for."""
    key = (judge_of(ref) or {}).get("api_key")
    return EnvironmentRef(id=ref.id, kwargs={} if key is None else {"token": key})


def allow_only(listed: Sequence[str]) -> None:
    """Let environments of this process, and of its children, ask these judges and no others."""
    os.environ[ALLOWED_VARIABLE] = json.dumps(list(listed))


def _with_key(ref: EnvironmentRef, change: Callable[[EnvironmentRef], EnvironmentRef]) -> EnvironmentRef:
    judge = judge_of(ref)
    if judge is None or not judge.get("api_key"):
        return ref
    changed = change(as_secret(ref)).kwargs.get("token", "")
    return EnvironmentRef(id=ref.id, kwargs={**ref.kwargs, "judge": {**judge, "api_key": changed}})
