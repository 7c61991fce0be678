"""Parse settings and request bodies into models; invalid ones raise an `InvalidRequestError`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.events import UpdateRequest
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.spec import KINDS, JobSpec
from tinkergym.schema.names import REMOTE_ID, is_environment_url, local_id
from tinkergym.schema.refusals import Refusal, explain, nearest_value

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
    plain = _plain(settings)
    _refuse_half_characters(plain)
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        raise explain(error, model, arguments) from None


def parse_json(model: type[Model], body: bytes | bytearray) -> Model:
    """Parse a request body as `model`, directly from the bytes.

    Raises:
        InvalidRequestError: with the dotted name of the setting in `field`.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        explained = explain(error, model)
        explained.field = explained.field or "body"
        raise explained from None


_RECORDED = {
    "environment_prompt": "set system_prompt, which replaces the environment's",
    "environment_variables": "set template_variables, which replace the environment's",
    "environment_data": "leave it out",
    "template_sha256": "leave it out",
    "evaluated_tasks": "leave it out",
    "group_rewards": "give the environment a method score_group(members)",
}
"""Settings that are read from the environment, and what to do instead of choosing them."""


def refuse_recorded(settings: Mapping[str, Any]) -> None:
    """Refuse settings that cannot be chosen: the kind, and those that are read from the environment.

    Raises:
        InvalidRequestError: One of them is set.
    """
    if "kind" in settings:
        hint = "call train, sft, preference, distill or create_policy"
        raise Refusal("kind", "is that of the client's method", hint, "recorded").error()
    for name, hint in _RECORDED.items():
        if name in settings:
            raise Refusal(name, "is read from the environment and cannot be set", hint, "recorded").error()


def parse_spec(
    settings: Mapping[str, Any], arguments: Sequence[str] = (), *, chosen: Mapping[str, Any] | None = None
) -> JobSpec:
    """Check the settings of a job of any kind; without a `kind` it is an RL job.

    Args:
        settings: All of them.
        arguments: As in `parse`.
        chosen: Those that a user chose, which must not be recorded ones.

    Raises:
        InvalidRequestError: with the dotted name of the setting in `field`.
    """
    refuse_recorded(chosen or {})
    kind = settings.get("kind", "rl")
    if not isinstance(kind, str) or kind not in KINDS:
        reason = f"must be one of {', '.join(map(repr, KINDS))}, got {kind!r:.80}"
        raise Refusal(
            "kind", reason, nearest_value(kind, KINDS) or "leave it out for an RL job", "unknown_kind"
        ).error()
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


def environment_ref(source: str | Callable[..., Any], kwargs: Mapping[str, Any]) -> EnvironmentRef:
    """Check what names an environment and its arguments, which are sent with a job and so must be JSON.

    Args:
        source: A registered id, the address of an environment server, or a script's class or function.
        kwargs: The arguments.

    Raises:
        InvalidRequestError: with the dotted name of the setting, as in a job, in `field`.
    """
    env_id = source if isinstance(source, str) else local_id(source)
    if is_environment_url(env_id):
        env_id, kwargs = REMOTE_ID, {**kwargs, "url": env_id}
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


def _refuse_half_characters(value: Any, path: str = "") -> None:
    """Refuse text that cannot be written as UTF-8, which pydantic accepts but JSON cannot hold."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_half_characters(key, path)
            _refuse_half_characters(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_half_characters(item, path)
    elif isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            reason = f"is not valid text: its character {error.start} is half of a surrogate pair"
            field = path.lstrip(".").encode(errors="replace").decode()
            raise Refusal(field, reason, "remove it", "string_unicode").error() from None
