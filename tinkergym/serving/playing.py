"""Calls of an environment on the server: its description, its calls, and their results as frames.

Runs where the environment lives, in its thread or its process. Every failure becomes a typed response.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from typing import Any, SupportsFloat

import gymnasium as gym

from tinkergym.errors import (
    InvalidRequestError,
    InvalidRewardError,
    RemoteEnvironmentError,
    TinkerGymError,
)
from tinkergym.rollout.group_scores import refuse_group_rewards
from tinkergym.serving.wire_protocol import QUESTIONS, Frame, Message, encode, error_message
from tinkergym.spaces import space_to_json
from tinkergym.user_code.quoting import quoted, with_relative_paths
from tinkergym.user_code.returned_values import finite_number

AnyEnv = gym.Env[Any, Any]

_MOST_TRACEBACK = 20_000


def describe(env: AnyEnv) -> Message:
    """Return what a client needs to represent the environment.

    Raises:
        InvalidSpaceError: A space cannot be described in JSON.
        InvalidEnvironmentError: It scores groups of episodes together.
    """
    refuse_group_rewards(env, "a server of environments plays episodes one by one")
    spec = env.spec
    return {
        "observation_space": space_to_json(env.observation_space),
        "action_space": space_to_json(env.action_space),
        "id": spec.id if spec is not None else type(env.unwrapped).__name__,
        "nondeterministic": bool(spec and spec.nondeterministic),
        "metadata": _metadata(env),
        "offers": sorted(name for name in QUESTIONS if callable(getattr(env.unwrapped, name, None))),
    }


def play(env: AnyEnv, message: Message, most_bytes: int) -> Frame:
    """Execute a message on the environment and return the response frame.

    Args:
        env: The environment.
        message: One of the protocol's calls.
        most_bytes: Longest frame.
    """
    index, call = message["i"], message["op"]
    try:
        frame = encode({"i": index, **_PLAY[call](env, message)})
    except TinkerGymError as error:
        # The environment's own errors keep their type, such as InvalidRewardError.
        frame = encode(error_message(error, index=index))
    except BaseException as error:  # Foreign code: even a SystemExit is its own failure, not ours.
        frame = encode(error_message(raised(call, error), index=index))
    if len(frame) > most_bytes:
        too_long = RemoteEnvironmentError(
            f"the response to {call} has {len(frame)} bytes, more than the server's limit of {most_bytes}",
            hint="return less at once, or start the server with a larger --max-message-bytes",
        )
        return encode(error_message(too_long, index=index))
    return frame


def raised(call: str, error: BaseException) -> TinkerGymError:
    """Return the error for an exception of the environment in `call`."""
    # The top frame is `play`, which does not help the author of an environment.
    frames = error.__traceback__.tb_next if error.__traceback__ is not None else None
    story = "".join(traceback.format_exception(type(error), error, frames))
    return failed(call, f"{type(error).__name__}: {error}", story)


def failed(call: str, what: str, story: str) -> TinkerGymError:
    """Return the error for a failed call with its traceback, which names no folders of this machine."""
    story = with_relative_paths(story)
    if len(story) > _MOST_TRACEBACK:
        half = _MOST_TRACEBACK // 2
        story = f"{story[:half]}\n... {len(story) - 2 * half} characters left out ...\n{story[-half:]}"
    return RemoteEnvironmentError(
        f"{call} raised {what[:2000]}\n\nThe traceback on the environment server:\n{story.rstrip()}",
        hint="fix the environment; the server keeps running",
    )


def _reset(env: AnyEnv, message: Message) -> Message:
    returned = env.reset(seed=message.get("seed"), options=message.get("options"))
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise _wrong("reset", 2, returned)
    return {"observation": returned[0], "info": returned[1]}


def _step(env: AnyEnv, message: Message) -> Message:
    if "action" not in message:
        raise InvalidRequestError("step needs an action", field="action")
    returned: Any = env.step(message["action"])
    if not isinstance(returned, tuple) or len(returned) != 5:
        raise _wrong("step", 5, returned)
    observation, reward, terminated, truncated, info = returned
    return {
        "observation": observation,
        "reward": _finite(reward),
        "terminated": bool(terminated),
        "truncated": bool(truncated),
        "info": info,
    }


def _render(env: AnyEnv, _message: Message) -> Message:
    return {"rendered": env.render()}


def _ask(env: AnyEnv, message: Message) -> Message:
    name = message.get("name")
    method = getattr(env.unwrapped, str(name), None) if name in QUESTIONS else None
    if not callable(method):
        raise InvalidRequestError(f"the environment has no {name!r}")
    return {"value": method()}


_PLAY: dict[str, Callable[[AnyEnv, Message], Message]] = {
    "reset": _reset,
    "step": _step,
    "render": _render,
    "ask": _ask,
}


def _finite(reward: SupportsFloat) -> float:
    try:
        return finite_number(reward)
    except ValueError as error:
        raise InvalidRewardError(
            f"step returned the reward {error}",
            hint="an environment that cannot compute the reward should raise "
            "tinkergym.errors.InvalidRewardError",
        ) from None


def _wrong(call: str, length: int, returned: object) -> TinkerGymError:
    what = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else type(returned).__name__
    return RemoteEnvironmentError(
        f"{call} must return a tuple of {length}, but it returned {what}: {quoted(returned)}"
    )


def _metadata(env: AnyEnv) -> Message:
    metadata = {str(key): value for key, value in (env.metadata or {}).items() if _is_json(value)}
    # The client does not see this machine's screen.
    return metadata | {"render_modes": [m for m in metadata.get("render_modes", []) if m != "human"]}


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
