"""An OpenEnv environment as a `gymnasium.Env`, played over its wire protocol.

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
from tinkergym.user_code.quoting import quoted

_CONNECT_SECONDS = 10.0
_BUSY_WAIT_SECONDS = 0.5
_MOST_SEED = 2**31


class OpenEnvEnv(gym.Env[str, str]):
    """A published OpenEnv environment as text, without changes to it.

    An action is the text of the environment's single action field, or a JSON object with all fields. If an
    action does not match its schema, the policy is told the reason and the action is counted as
    `malformed_actions`; the environment is not stepped. If the environment raises an error, the episode is
    lost.

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
        """Request the action schema from the server.

        Args:
            url: The server: `http://HOST:PORT`, or `https://HOST`.
            action_field: The action's field for the policy's text; the others keep their defaults. None uses
                the only field; if there are several, the policy writes a JSON object.
            observation_fields: The fields of an observation to show, in this order; empty means all.
            reset_arguments: Arguments of the environment's `reset`, in addition to the seed.
            system_prompt: Precedes the first observation; None explains JSON actions.
            hold: Whether a place on the server is released after each `episode`, or kept for the `session`.
            busy_seconds: How long `reset` waits for a place.
            step_timeout_seconds: Time limit for the server's response.
            max_message_bytes: Size limit for messages.
            render_mode: Must be None; there is nothing to render.

        Raises:
            ServiceUnreachableError: No server responds.
            InvalidRequestError: The server is not an OpenEnv server, or has no such field.
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
        """Start an episode on the server. The seed is passed on; the environment decides whether to use it.

        Raises:
            EnvironmentBusyError: No place was free for `busy_seconds`.
            RemoteEnvironmentError: The environment raised an error.
        """
        del options
        super().reset(seed=seed)
        there = int(self.np_random.integers(_MOST_SEED)) if seed is None else seed
        answer = self._begin({**self._reset_arguments, "seed": there})
        self._playing = True
        return self._words(answer), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Step on the server. OpenEnv does not report truncation, so every end is a termination.

        Raises:
            EpisodeProtocolError: No episode is running.
            RemoteEnvironmentError: The environment raised an error.
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
        """Release the place unless it is kept for the session."""
        self._playing = False
        if self._hold == "episode":
            self._leave()

    def close(self) -> None:
        """End the session."""
        self._leave()

    def _begin(self, arguments: dict[str, Any]) -> OpenEnvAnswer:
        """Reset; retry while the server has no free place."""
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
                # Randomly shortened, so that waiting clients do not all retry together.
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
    """Parses a policy's text to the fields of an action, by the environment's JSON schema."""

    def __init__(self, schema: Mapping[str, Any], field: str | None) -> None:
        """Choose the field.

        Raises:
            InvalidRequestError: The schema has no such field, or is not a schema of an object.
        """
        properties = schema.get("properties") or {}
        if not isinstance(properties, Mapping):
            raise InvalidRequestError(
                f"the server's schema of actions lists its fields as {quoted(properties)}",
                hint="its `properties` must be a JSON object; correct the environment's server",
                field="url",
            )
        # Every action has metadata, which is for programs rather than the policy.
        known = {name: kind for name, kind in properties.items() if name != "metadata"}
        if field is not None and field not in known:
            raise InvalidRequestError(
                f"an action of this environment has no field {field!r}",
                hint=f"it has {', '.join(known) or 'none'}",
                field="action_field",
            )
        only = next(iter(known)) if len(known) == 1 else None
        self._field = field or (only if only and _is_plain(known[only]) else None)
        self._schema = {"properties": known, "required": schema.get("required", [])}
        self._allows_others = not known or bool(schema.get("additionalProperties"))
        self._kind = _type(known[self._field]) if self._field else "object"

    def read(self, text: str) -> dict[str, Any]:
        """Return the fields.

        Raises:
            ActionRefusedError: The text does not match the schema.
        """
        if self._field and self._kind == "string":
            return {self._field: text}
        try:
            value = json.loads(text)
            json.dumps(value, allow_nan=False)  # Python also reads NaN and Infinity, and 1e999 as Infinity.
        except (ValueError, RecursionError) as error:
            raise ActionRefusedError(f"Write {self._wanted()}. ({error})") from None
        if self._field:
            return {self._field: value}
        if not isinstance(value, dict):
            raise ActionRefusedError(f"Write {self._wanted()}.")
        allowed = set(value) if self._allows_others else set(self._schema["properties"])
        if unknown := sorted(set(value) - (allowed - {"metadata"})):
            raise ActionRefusedError(f"There is no field {unknown[0]!r}. Write {self._wanted()}.")
        return value

    def prompt(self) -> str:
        """Return what a policy must know about actions; empty if they are plain text."""
        if self._field:
            return ""
        return f"Answer with a JSON object and nothing else. Its fields: {_json(self._schema)}"

    def _wanted(self) -> str:
        return (
            f"a JSON {self._kind}" if self._field else f"a JSON object with the fields {_json(self._schema)}"
        )


def _is_plain(kind: object) -> bool:
    return isinstance(kind, Mapping) and kind.get("type") in ("string", "integer", "number", "boolean")


def _type(kind: object) -> object:
    """Return a field's JSON type; a schema without one, such as `true`, allows text as well."""
    return kind.get("type", "string") if isinstance(kind, Mapping) else "string"


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
