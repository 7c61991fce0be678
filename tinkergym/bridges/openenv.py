"""An environment of OpenEnv as a `gymnasium.Env`, played over its wire protocol.

Needs `pip install '.[serving]'` in a checkout of tinkergym, and a running server of the environment.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym

from tinkergym.bridges.openenv_wire import (
    ActionRefusedError,
    OpenEnvAddress,
    OpenEnvAnswer,
    OpenEnvSession,
    read_schema,
)
from tinkergym.errors import EnvironmentBusyError, EpisodeProtocolError, InvalidRequestError
from tinkergym.spaces import Text

_CONNECT_SECONDS = 10.0
_BUSY_WAIT_SECONDS = 0.5
_MOST_SEED = 2**31


class OpenEnvEnv(gym.Env[str, str]):
    """A published OpenEnv environment, unchanged, in text.

    An action is the text of the environment's one action field, or a JSON object with all of them. An action
    that its schema refuses is answered with the reason and counted as `malformed_actions`; the environment is
    not stepped. An error of the environment itself loses the episode.

    Example:
        >>> tg.register("published/Maze-v0", OpenEnvEnv, kwargs={"url": "http://127.0.0.1:8000"})
    """

    metadata: dict[str, Any] = {"render_modes": [], "turns": "multi", "data": "free"}  # noqa: RUF012 - Gymnasium declares it so

    def __init__(
        self,
        url: str,
        *,
        action_field: str | None = None,
        observation_fields: Sequence[str] = (),
        reset_arguments: Mapping[str, Any] | None = None,
        system_prompt: str | None = None,
        hold: Literal["episode", "session"] = "episode",
        busy_seconds: float = 30.0,
        step_timeout_seconds: float = 60.0,
        max_message_bytes: int = 2**26,
        render_mode: str | None = None,
    ) -> None:
        """Ask the server what its actions look like.

        Args:
            url: Of the server: `http://HOST:PORT`, or `https://HOST`.
            action_field: The field of an action that the policy's text is; the others keep their defaults.
                None takes the only field, or has the policy write a JSON object if there are several.
            observation_fields: The fields of an observation that are shown, in this order; all if empty.
            reset_arguments: For the environment's `reset`, next to the seed.
            system_prompt: Stands before the first observation; None explains actions that are JSON.
            hold: Whether a place on the server is given back after each `episode`, or kept for the `session`.
            busy_seconds: How long `reset` waits for a place.
            step_timeout_seconds: How long the server may take to answer.
            max_message_bytes: Longest message that is taken.
            render_mode: None; there is nothing to see.

        Raises:
            ServiceUnreachableError: No server answers.
            InvalidRequestError: Something else answers there, or it has no such field.
        """
        self.render_mode = render_mode
        self.observation_space, self.action_space = Text(), Text()
        if hold not in ("episode", "session"):
            raise InvalidRequestError(f"{hold!r} is neither 'episode' nor 'session'", field="hold")
        self._address = OpenEnvAddress.parse(url)
        schema = read_schema(self._address, timeout_seconds=_CONNECT_SECONDS)
        self._actions = ActionReader(schema["action"], action_field)
        self._shown = _known_fields(observation_fields, schema.get("observation"))
        self._reset_arguments = dict(reset_arguments or {})
        self._hold = hold
        self._busy_seconds, self._step_seconds = busy_seconds, step_timeout_seconds
        self._max_message_bytes = max_message_bytes
        prompt = self._actions.prompt() if system_prompt is None else system_prompt
        self.metadata = {**self.metadata, "system_prompt": prompt} if prompt else dict(self.metadata)
        self._session: OpenEnvSession | None = None
        self._playing = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode there. The seed is handed on; whether it is heeded is the environment's business.

        Raises:
            EnvironmentBusyError: No place was free for `busy_seconds`.
            RemoteEnvironmentError: The environment raised.
        """
        del options
        super().reset(seed=seed)
        there = int(self.np_random.integers(_MOST_SEED)) if seed is None else seed
        answer = self._begin({**self._reset_arguments, "seed": there})
        self._playing = True
        return self._words(answer), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Act there. OpenEnv does not say whether an episode was cut off, so every end is a termination.

        Raises:
            EpisodeProtocolError: No episode is running.
            RemoteEnvironmentError: The environment raised.
            EnvironmentGoneError: The server is gone, and with it the episode.
        """
        if self._session is None or not self._playing:
            raise EpisodeProtocolError("no episode is running", hint="call reset before step")
        try:
            fields = self._actions.read(action)
            answer = self._session.ask("step", fields, timeout_seconds=self._step_seconds)
        except ActionRefusedError as refused:
            said = f"That action was refused.\n{refused}"
            return said, 0.0, False, False, {"metrics": {"malformed_actions": 1.0}}
        except Exception:
            self._leave()
            raise
        if answer.done:
            self._playing = False
            self.end_episode()
        info = {"metrics": {"malformed_actions": 0.0}}
        return self._words(answer), answer.reward, answer.done, False, info

    def end_episode(self) -> None:
        """Give the place back unless it is held for the session."""
        self._playing = False
        if self._hold == "episode":
            self._leave()

    def close(self) -> None:
        """End the session."""
        self._leave()

    def _begin(self, arguments: dict[str, Any]) -> OpenEnvAnswer:
        """Reset; while the server has no place free, try again."""
        ends_at = time.monotonic() + self._busy_seconds
        while True:
            self._session = self._session or OpenEnvSession(
                self._address, timeout_seconds=_CONNECT_SECONDS, max_message_bytes=self._max_message_bytes
            )
            try:
                return self._session.ask("reset", arguments, timeout_seconds=self._step_seconds)
            except EnvironmentBusyError:
                self._leave()
                left = ends_at - time.monotonic()
                if left <= 0:
                    raise
                # Shortened at random, so that many who wait do not all come back together.
                time.sleep(min(_BUSY_WAIT_SECONDS * random.uniform(0.2, 1.0), left))
            except Exception:
                self._leave()
                raise

    def _leave(self) -> None:
        session, self._session = self._session, None
        self._playing = False
        if session is not None:
            session.close()

    def _words(self, answer: OpenEnvAnswer) -> str:
        shown = {
            name: answer.observation[name]
            for name in self._shown or answer.observation
            if answer.observation.get(name) is not None
        }
        texts = {name: value if isinstance(value, str) else _json(value) for name, value in shown.items()}
        if len(texts) == 1:
            return next(iter(texts.values()))
        return "\n".join(f"{name}: {text}" for name, text in texts.items())


class ActionReader:
    """Reads a policy's text as the fields of an action, by the environment's JSON schema."""

    def __init__(self, schema: Mapping[str, Any], field: str | None) -> None:
        """Choose the field.

        Raises:
            InvalidRequestError: The schema has no such field.
        """
        properties = schema.get("properties")
        # Every action has metadata; it is for the program that acts, not for the policy.
        known = {name: kind for name, kind in dict(properties or {}).items() if name != "metadata"}
        if field is not None and field not in known:
            raise InvalidRequestError(
                f"an action of this environment has no field {field!r}",
                hint=f"it has {', '.join(known) or 'none'}",
                field="action_field",
            )
        only = next(iter(known)) if len(known) == 1 else None
        self._field = field or (only if only and _is_plain(known[only]) else None)
        self._schema = {"properties": known, "required": schema.get("required", [])}
        self._kind = known[self._field].get("type", "string") if self._field else "object"

    def read(self, text: str) -> dict[str, Any]:
        """Return the fields.

        Raises:
            ActionRefusedError: The text is not such a value.
        """
        if self._field and self._kind == "string":
            return {self._field: text}
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ActionRefusedError(f"Write {self._wanted()}. ({error})") from None
        if self._field:
            return {self._field: value}
        if not isinstance(value, dict):
            raise ActionRefusedError(f"Write {self._wanted()}.")
        return value

    def prompt(self) -> str:
        """Return what a policy has to know of actions; empty where they are plain text."""
        if self._field:
            return ""
        return f"Answer with a JSON object and nothing else. Its fields: {_json(self._schema)}"

    def _wanted(self) -> str:
        return (
            f"a JSON {self._kind}" if self._field else f"a JSON object with the fields {_json(self._schema)}"
        )


def _is_plain(kind: object) -> bool:
    return isinstance(kind, Mapping) and kind.get("type") in ("string", "integer", "number", "boolean")


def _known_fields(names: Sequence[str], schema: object) -> tuple[str, ...]:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    unknown = [name for name in names if isinstance(properties, Mapping) and name not in properties]
    if isinstance(names, str) or unknown:
        raise InvalidRequestError(
            f"an observation of this environment has no field {unknown[0] if unknown else names!r}",
            hint=f"it has {', '.join(properties or ())}" if properties else "give a list of names",
            field="observation_fields",
        )
    return tuple(names)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
