"""How a server creates its environments, and what clients are told about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tinkergym.errors import InvalidEnvironmentError, InvalidRequestError
from tinkergym.registration.environments import register
from tinkergym.rollout.environment_host import AnyEnv, ForwardedError
from tinkergym.rollout.environment_process import EnvironmentProcess
from tinkergym.serving.playing import describe
from tinkergym.serving.served_game import make_served
from tinkergym.serving.server_settings import ServerSettings
from tinkergym.serving.wire_protocol import Message


def maker(settings: ServerSettings, render_mode: str | None = None) -> Callable[[], AnyEnv]:
    """Return a function that creates one environment of the server; it can be sent to a process."""
    kwargs = settings.kwargs if render_mode is None else {**settings.kwargs, "render_mode": render_mode}
    return partial(_make, settings.environment_id, settings.entry_point, kwargs)


def _make(environment_id: str, entry_point: str, kwargs: Mapping[str, Any]) -> AnyEnv:
    # Registered on creation: in a separate process nothing is registered.
    if entry_point:
        register(environment_id, entry_point)
    return make_served(environment_id, kwargs)


def description_of(settings: ServerSettings) -> Message:
    """Create one environment to check that this works, and return its description for clients.

    Raises:
        InvalidRequestError: It is unknown, cannot be created, or has spaces without a JSON form.
    """
    if not settings.processes:
        env = maker(settings)()
        try:
            return describe(env)
        finally:
            env.close()
    process = EnvironmentProcess(maker(settings))
    try:
        process.start()
        description: Message = process.apply(describe)
    except ForwardedError as error:
        raise InvalidEnvironmentError(error.text, field="environment") from None
    finally:
        process.close()
    return description


def check_render_mode(mode: object, description: Message) -> str | None:
    """Return the render mode that a client requested.

    Raises:
        InvalidRequestError: The environment does not have it, or it needs a screen.
    """
    if mode is None:
        return None
    offered = description["metadata"]["render_modes"]
    if mode not in offered:
        raise InvalidRequestError(
            f"{description['id']} cannot be rendered remotely as {mode!r}",
            hint=f"choose one of {', '.join(offered)}" if offered else "leave render_mode out",
            field="render_mode",
        )
    return str(mode)
