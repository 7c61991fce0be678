"""`tinkergym/Remote-v0`: an environment on another machine, played as if it were local."""

from __future__ import annotations

import os
import threading
from typing import Any, Literal, cast

import gymnasium as gym

from tinkergym.errors import EnvironmentGoneError, EpisodeProtocolError, InvalidRequestError
from tinkergym.schema.environment_url import parse_environment_url
from tinkergym.schema.names import TOKEN_VARIABLE
from tinkergym.serving.client_session import EnvSession, ServerAddress
from tinkergym.serving.served_game import AGENTS, RemoteTable
from tinkergym.serving.server_responses import read_question, read_reset, read_step


def make_remote(**kwargs: Any) -> RemoteEnv:
    """Create a `RemoteEnv`.

    A function, because `gymnasium.make` reads a class's render modes before there is an instance, and only
    the server knows them.
    """
    return RemoteEnv(**kwargs)


class RemoteEnv(gym.Env[Any, Any]):
    """The client of an environment server, see `tinkergym serve-env`.

    Spaces and metadata are the server's. The first `reset` takes a place there, which `close` frees. A lost
    connection is restored and the lost call repeated; the server plays no step twice. Pickled, copied or
    inherited through a fork, it refers to the same server, but not to the same episode.
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        render_mode: str | None = None,
        busy_seconds: float = 0.0,
        reconnect_seconds: float = 10.0,
        hold: Literal["session", "episode"] = "session",
        address: str = "",
    ) -> None:
        """Ask the server what it serves.

        Args:
            url: `ws://HOST:PORT`, or `wss://HOST` behind TLS.
            token: The server's token. None uses $TINKERGYM_ENV_TOKEN, which keeps it out of `env.spec`.
            render_mode: One of the modes in the metadata.
            busy_seconds: How long `reset` waits for a place when all are taken.
            reconnect_seconds: How long to try to reconnect to a lost server.
            hold: `session` keeps the place until `close`; `episode` frees it when an episode ends. Then more
                environments than places can take turns, and each `reset` needs a seed.
            address: The address to connect to instead of resolving the host's name.

        Raises:
            InvalidRequestError: The URL or a setting is invalid, or the server is not an environment server.
            ServiceUnreachableError: The server does not respond.
            AuthenticationError: The token is missing or wrong.
            VersionMismatchError: The server uses another version of the protocol.
        """
        if hold not in ("session", "episode"):
            raise InvalidRequestError(f"{hold!r} is neither 'session' nor 'episode'", field="hold")
        if token is None:
            token = os.environ.get(TOKEN_VARIABLE, "")
        self.render_mode = render_mode
        self._hold = hold
        self._busy_seconds = busy_seconds
        self._server = ServerAddress(
            url=parse_environment_url(url), token=token, address=address, reconnect_seconds=reconnect_seconds
        )
        self._playing = False
        self._seeded = False
        self._begin()
        about = self._session.about()
        self.observation_space, self.action_space = about.observation_space, about.action_space
        self.metadata, self._offers = about.metadata, about.offers
        if render_mode is not None and render_mode not in self.metadata.get("render_modes", ()):
            self._session.close()
            raise InvalidRequestError(
                f"{about.environment_id} cannot be rendered as {render_mode!r}", field="render_mode"
            )

    def as_table(self) -> RemoteTable | None:
        """Return the table of a game with several seats; None if an environment is served."""
        return RemoteTable(self) if AGENTS in self.metadata else None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode there; starts a new session if it was lost and a seed is given.

        Raises:
            EnvironmentBusyError: All places of the server are taken.
            EnvironmentGoneError: The session was lost, and no seed was given, so the sequence of episodes
                cannot continue.
            RemoteEnvironmentError: The environment raised.
        """
        super().reset(seed=seed)
        with self._turn() as session:
            if not session.is_open and self._seeded and seed is None:
                raise EnvironmentGoneError(
                    "the session is over, and reset() without a seed cannot continue its random numbers",
                    hint="call reset(seed=...)",
                )
            try:
                begun = self._reset_there(session, seed, options)
            except EnvironmentGoneError:
                # Idle for too long between two episodes: with a seed nothing is lost.
                if seed is None:
                    raise
                begun = self._reset_there(session, seed, options)
            self._seeded = self._seeded or seed is not None
            self._playing = True
            return begun

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play one action there.

        Raises:
            EnvironmentGoneError: The session or the server is gone, and the episode with it.
            EnvironmentTimeoutError: The environment hangs.
            InvalidRewardError: The reward is not a finite number.
            RemoteEnvironmentError: The environment raised; the message has the traceback.
            RemoteAnswerError: The server's response is invalid, or its observation is not in the space.
        """
        with self._turn() as session:
            if not session.is_open:
                raise self._no_episode()
            result = session.call(
                "step", lambda answer: read_step(answer, self.observation_space), action=action
            )
            _, _, terminated, truncated, _ = result
            if (terminated or truncated) and self._hold == "episode":
                session.close()
                # Not lost, but ended: the next reset needs no seed only if none was ever given.
                self._playing = False
            return result

    def render(self) -> Any:
        """Return the server's rendering."""
        with self._turn() as session:
            if not session.is_open:
                raise self._no_episode()
            return session.call("render", lambda answer: answer.get("rendered"))

    def gold_action(self) -> str | None:
        """Return the best action, if the environment knows it."""
        return cast("str | None", self._ask("gold_action"))

    def legal_actions(self) -> list[str] | None:
        """Return the legal actions, if the environment knows them."""
        return cast("list[str] | None", self._ask("legal_actions"))

    def end_episode(self) -> None:
        """Free the place unless it is held for the session, because the player ended the episode."""
        if self._hold == "episode":
            self.close()

    def close(self) -> None:
        """Free the place. May be called again, and the environment may be reset again."""
        if self.__dict__.get("_session") is not None:
            with self._turn() as session:
                session.close()
            self._playing = False

    # --- inside ---

    def _ask(self, name: str) -> Any:
        with self._turn() as session:
            if name not in self._offers or not session.is_open:
                return None
            return session.call("ask", lambda answer: read_question(answer, name), name=name)

    def _reset_there(
        self, session: EnvSession, seed: int | None, options: dict[str, Any] | None
    ) -> tuple[Any, dict[str, Any]]:
        if not session.is_open:
            session.open(self.render_mode, self._busy_seconds)
        return session.call(
            "reset", lambda answer: read_reset(answer, self.observation_space), seed=seed, options=options
        )

    def _no_episode(self) -> Exception:
        if self._playing:
            return EnvironmentGoneError(
                "the episode is over: its session was lost, or belongs to another process",
                hint="call reset(seed=...)",
            )
        return EpisodeProtocolError("no episode is running", hint="call reset before step")

    def _turn(self) -> _Turn:
        if self._pid != os.getpid():
            # After a fork both processes have the same socket; the session stays with the parent.
            self._session.forget()
            self._begin()
        return _Turn(self._lock, self._session)

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._session = EnvSession(self._server)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_lock", "_session", "_pid")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __del__(self) -> None:
        # If `close` was forgotten, free the place when the environment is no longer used.
        if self.__dict__.get("_session") is not None and self._pid == os.getpid():
            self._session.abandon()


class _Turn:
    """One call at a time, from any number of threads."""

    def __init__(self, lock: threading.Lock, session: EnvSession) -> None:
        self._lock, self._session = lock, session

    def __enter__(self) -> EnvSession:
        self._lock.acquire()
        return self._session

    def __exit__(self, *_: object) -> None:
        self._lock.release()
