"""External models that play seats of games: which ones the service may call, and where their keys are kept.

A key is a secret of the job's owner: it is stored like the tokens of environment servers, and the job only
contains a name for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from backend.external import environment_tokens
from backend.external.environment_tokens import PutSecret, ReadSecret
from tinkergym.errors import InvalidRequestError
from tinkergym.network import model_urls
from tinkergym.network.model_urls import origin_of
from tinkergym.rollout.external_player import ALLOWED_VARIABLE
from tinkergym.schema.fixed_players import External
from tinkergym.schema.jobs.parts import EnvironmentRef


def check_listed(models: Iterable[External], listed: Sequence[str]) -> None:
    """Check that the operator allows all external models of a job. Does not use the network.

    Args:
        models: The job's.
        listed: `ServiceConfig.opponent_urls`.

    Raises:
        InvalidRequestError: A model is not listed; the message names it.
    """
    for model in models:
        origin = origin_of(model.url)
        if origin not in listed:
            raise InvalidRequestError(
                f"this service may not call models at {origin}, such as {model.model!r}",
                hint=f"let the operator add {origin!r} to opponent_urls, or play the episodes with "
                "rollout='client'",
                field="agents",
            )


def refuse_keys(models: Iterable[External]) -> None:
    """Refuse keys where nothing would store them.

    Raises:
        InvalidRequestError: A model of the job has a key.
    """
    for model in models:
        if model.api_key:
            raise InvalidRequestError(
                f"the External {model.model!r} is called by the client, and the service does not give out "
                f"keys",
                hint="leave api_key out, and set TINKERGYM_OPPONENT_KEY in the process that plays",
                field="agents",
            )


def put_away(model: External, store: PutSecret) -> External:
    """Return a model with its key replaced by the key's name."""
    if not model.api_key:
        return model
    put = environment_tokens.put_away(as_secret(model.api_key), store)
    return model.model_copy(update={"api_key": put.kwargs["token"]})


def fetch(name: str, read: ReadSecret) -> str:
    """Return the key that `put_away` stored. Only for names from the store.

    Raises:
        ConfigError: It is gone.
    """
    return str(environment_tokens.fetch(as_secret(name), read).kwargs.get("token", ""))


def as_secret(key: str) -> EnvironmentRef:
    """Return a reference whose `token` is a key, or its name, for code that handles tokens."""
    return EnvironmentRef(id="opponent", kwargs={"token": key})


def allow_only(listed: Sequence[str]) -> None:
    """Allow games of this process, and of its children, to call these models and no others."""
    model_urls.allow_only(ALLOWED_VARIABLE, listed)
