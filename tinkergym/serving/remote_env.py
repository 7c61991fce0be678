"""`tinkergym/Remote-v0`: an environment that is somewhere else, played as if it were here."""

from __future__ import annotations

import os
import threading
from typing import Any, Literal, cast

import gymnasium as gym

from tinkergym.errors import EnvironmentGoneError, EpisodeProtocolError, InvalidRequestError
from tinkergym.schema.environment_url import parse_environment_url
from tinkergym.schema.names import TOKEN_VARIABLE
from tinkergym.serving.answers import read_question, read_reset, read_step
from tinkergym.serving.client_session import EnvSession, ServerAddress
from tinkergym.serving.served_game import AGENTS, RemoteTable


def make_remote(**kwargs: Any) -> RemoteEnv:
    """Create a `RemoteEnv`.

    A function, since `gymnasium.make` looks a class's ways of rendering up before there is an instance, and
    only the server knows them.
    """
    return RemoteEnv(**kwargs)


class RemoteEnv(gym.Env[Any, Any]):
    """The client of an environment server, see `tinkergym serve-env`.

    Spaces and metadata are the server's. The first `reset` takes a place there, which `close` gives back. A
    connection that is lost is made again, and the call that was lost with it is repeated; the server plays
    nothing twice. Pickled, copied or carried over a fork, it stands for the same server, not for the episode.
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
            token: The server's. None takes $TINKERGYM_ENV_TOKEN, which keeps it out of `env.spec`.
            render_mode: One of those in the metadata.
            busy_seconds: How long `reset` waits for a place when all are taken.
            reconnect_seconds: How long a server that went away is looked for.
            hold: Whether the place is kept until `close`, or given back when an episode ends. Then more
                environments than places can take turns, and each `reset` needs a seed.
            address: What to connect to instead of looking the host's name up.

        Raises:
            InvalidRequestError: The URL or a setting is wrong, or no environment server is there.
            ServiceUnreachableError: Nobody answers.
            AuthenticationError: The token is missing or wrong.
            ProtocolVersionError: The server speaks another version of the protocol.
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
        """Start an episode there; begins anew when the session was lost, if a seed says how.

        Raises:
            EnvironmentBusyError: All places of the server are taken.
            EnvironmentGoneError: The session was lost, and without a seed the next episode would not be the
                one that would have followed.
            RemoteEnvironmentError: The environment raised.
        """
        super().reset(seed=seed)
        with self._turn() as session:
            if not session.is_open and self._seeded and seed is None:
                raise EnvironmentGoneError(
                    "the session is over, and with it the random numbers that reset() goes on with",
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
            EnvironmentGoneError: The session or the server is gone, and with it the episode.
            EnvironmentTimeoutError: The environment hangs.
            InvalidRewardError: The reward is no finite number.
            RemoteEnvironmentError: The environment raised; the text has the traceback.
            RemoteAnswerError: The server's answer is none, or its observation is not in the space.
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
                # Not lost, but ended: the next reset may do without a seed only if none was ever given.
                self._playing = False
            return result

    def render(self) -> Any:
        """Return the picture that the environment draws there."""
        with self._turn() as session:
            if not session.is_open:
                raise self._no_episode()
            return session.call("render", lambda answer: answer.get("rendered"))

    def gold_action(self) -> str | None:
        """Return the best action now, if the environment knows it."""
        return cast("str | None", self._ask("gold_action"))

    def legal_actions(self) -> list[str] | None:
        """Return the actions that are legal now, if the environment knows them."""
        return cast("list[str] | None", self._ask("legal_actions"))

    def end_episode(self) -> None:
        """Give the place back unless it is held for the session: whoever plays ended the episode."""
        if self._hold == "episode":
            self.close()

    def close(self) -> None:
        """Give the place back. May be called again, and the environment may be reset again."""
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
            # After a fork both processes hold the same socket; the session stays with the parent.
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
        # Whoever forgot to close gives the place back at least when nobody can play any more.
        if self.__dict__.get("_session") is not None and self._pid == os.getpid():
            self._session.abandon()


class _Turn:
    """One call at a time, whatever threads there are."""

    def __init__(self, lock: threading.Lock, session: EnvSession) -> None:
        self._lock, self._session = lock, session

    def __enter__(self) -> EnvSession:
        self._lock.acquire()
        return self._session

    def __exit__(self, *_: object) -> None:
        self._lock.release()
