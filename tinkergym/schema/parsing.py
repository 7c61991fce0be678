"""Parse settings and request bodies into models; invalid ones raise an `InvalidRequestError`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.spec import KINDS, JobSpec
from tinkergym.schema.updates import UpdateRequest

Model = TypeVar("Model", bound=BaseModel)


def parse(model: type[Model], settings: Mapping[str, Any], arguments: Sequence[str] = ()) -> Model:
    """Check `settings` against a model.

    Args:
        model: The expected model.
        settings: Values by name; models among them are checked again.
        arguments: Further argument names of the caller, for suggestions about misspelt settings.

    Raises:
        InvalidRequestError: with the dotted name of the setting in `field`.
    """
    try:
        return model.model_validate(_plain(settings))
    except ValidationError as error:
        from tinkergym.schema.setting_errors import explain

        raise explain(error, model, arguments) from None


def parse_json(model: type[Model], body: bytes | bytearray) -> Model:
    """Parse a request body as `model`, directly from the bytes.

    Raises:
        InvalidRequestError: with the dotted name of the setting in `field`.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        from tinkergym.schema.setting_errors import explain

        raise explain(error, model) from None


def parse_spec(settings: Mapping[str, Any], arguments: Sequence[str] = ()) -> JobSpec:
    """Check the settings of a job of any kind; without a `kind` it is an RL job.

    Raises:
        InvalidRequestError: with the dotted name of the setting in `field`.
    """
    kind = settings.get("kind", "rl")
    if not isinstance(kind, str) or kind not in KINDS:
        kinds = ", ".join(repr(known) for known in KINDS)
        from tinkergym.schema.setting_errors import nearest_value

        hint = nearest_value(kind, kinds)
        raise InvalidRequestError(f"must be one of {kinds}, got {kind!r:.80}", hint=hint, field="kind")
    return parse(KINDS[kind], settings, arguments)


def update_request(settings: Mapping[str, Any]) -> UpdateRequest:
    """Check that changed settings can be sent; the service decides which of them a job accepts.

    Raises:
        InvalidRequestError: with the name of the setting in `field`.
    """
    agents = settings.get("agents")
    if isinstance(agents, Mapping) and all(isinstance(own, Mapping) for own in agents.values()):
        settings = {name: value for name, value in settings.items() if name != "agents"} | {
            f"agents.{agent}.{name}": value for agent, own in agents.items() for name, value in own.items()
        }
    return parse(UpdateRequest, {"settings": settings})


def environment_ref(env_id: str, kwargs: Mapping[str, Any]) -> EnvironmentRef:
    """Check the id of an environment and its arguments, which are sent with a job and so must be JSON.

    Raises:
        InvalidRequestError: with the dotted name of the setting, as in a job, in `field`.
    """
    try:
        return parse(EnvironmentRef, {"id": env_id, "kwargs": kwargs})
    except InvalidRequestError as error:
        error.field = f"environment.{error.field}"
        raise


def _plain(value: Any) -> Any:
    """Turn models inside the settings into dicts, so that a subclass or a copy is validated again."""
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value
