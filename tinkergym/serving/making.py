"""How the environments of a server are made and called: in the server's process, or in one each."""

from __future__ import annotations

from collections.abc import Callable

from tinkergym.errors import InvalidRequestError
from tinkergym.registration.environments import register
from tinkergym.rollout.environment_host import AnyEnv
from tinkergym.serving.playing import describe
from tinkergym.serving.process_env import ProcessEnv
from tinkergym.serving.protocol import Message
from tinkergym.serving.served_game import make_served
from tinkergym.serving.settings import ServerSettings


def maker(settings: ServerSettings, render_mode: str | None = None) -> Callable[[], AnyEnv]:
    """Return what makes one environment of the server."""
    kwargs = settings.kwargs if render_mode is None else {**settings.kwargs, "render_mode": render_mode}
    if settings.processes:
        return lambda: ProcessEnv(
            settings.environment_id, kwargs, settings.max_message_bytes, entry_point=settings.entry_point
        )
    if settings.entry_point:
        register(settings.environment_id, settings.entry_point)
    return lambda: make_served(settings.environment_id, kwargs)


def description_of(settings: ServerSettings) -> Message:
    """Make one environment to see that it can be made, and return what clients must know of it.

    Raises:
        InvalidRequestError: It is unknown, cannot be made, or has spaces that cannot travel.
    """
    env = maker(settings)()
    try:
        return env.exchange({"op": "about"}) if isinstance(env, ProcessEnv) else describe(env)
    finally:
        env.close()


def check_render_mode(mode: object, description: Message) -> str | None:
    """Return the way of rendering that a client asked for.

    Raises:
        InvalidRequestError: The environment has none of this name, or it needs a screen.
    """
    if mode is None:
        return None
    offered = description["metadata"]["render_modes"]
    if mode not in offered:
        raise InvalidRequestError(
            f"{description['id']} cannot be rendered as {mode!r} from afar",
            hint=f"choose one of {', '.join(offered)}" if offered else "leave render_mode out",
            field="render_mode",
        )
    return str(mode)
