"""A session: one environment on the server, the number of its last call, and that call's response.

Lives on the server's event loop. Independent of connections: one may be lost and another replace it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable

from tinkergym.errors import ConflictError, EnvironmentGoneError, EnvironmentTimeoutError, TinkerGymError
from tinkergym.rollout.environment_host import AnyEnv, EnvironmentHost, ForwardedError, Report, TakeReports
from tinkergym.rollout.environment_process import EnvironmentProcess, ProcessHost
from tinkergym.serving.playing import failed, play
from tinkergym.serving.wire_protocol import Frame, Message, encode, error_message
from tinkergym.serving.wire_values import Blob
from tinkergym.user_code.quoting import with_relative_paths

_MOST_KEPT = 256
"""Requests up to this length are stored; of longer ones, only the hash."""


class Session:
    """One environment and its calls, each of which happens once."""

    def __init__(
        self,
        session_id: str,
        *,
        make: Callable[[], AnyEnv],
        in_a_process: bool,
        report: TakeReports,
        step_timeout_seconds: float,
        max_message_bytes: int,
        now: float,
    ) -> None:
        """Start the environment's thread, which starts its process if it has one.

        Args:
            session_id: Chosen by the client.
            make: Creates the environment, in the process where it runs.
            in_a_process: Whether that is a separate process.
            report: Receives the host's reports, in its thread, and passes them to `reported` on the event
                loop.
            step_timeout_seconds: Time limit for one call.
            max_message_bytes: Size limit for responses.
            now: Seconds, monotonic, as everywhere here.
        """
        self.session_id = session_id
        self.last_seen = now
        """When its client last sent a request or got a response."""
        self.lost_at: float | None = None
        """Since when it has no connection; None while it has one."""
        self.ended: TinkerGymError | None = None
        """Why there will be no further calls; None while there may be."""
        self.on_end: Callable[[TinkerGymError], None] | None = None
        """Told when the server ends the session; belongs to the connection that serves it at the moment."""
        self.shown: dict[str, Blob] = {}
        """Bytes of the last response, by hash, for a client that lacks some."""
        self._step_timeout = step_timeout_seconds
        self._most_bytes = max_message_bytes
        self._index = -1
        self._op = ""
        self._request: Frame = ""
        self._answer: asyncio.Future[Frame] | None = None
        self._call_ends_at = 0.0
        host = ProcessHost if in_a_process else EnvironmentHost
        self.host = host(make, report, name=f"session {session_id[:8]}")

    @property
    def busy(self) -> bool:
        """Whether a call runs."""
        return self._answer is not None and not self._answer.done()

    async def call(self, message: Message, frame: Frame, now: float) -> Frame:
        """Make a call, or return the stored response if it repeats the last call.

        Args:
            message: One of the protocol's calls.
            frame: The raw frame: a repetition must be identical.
            now: Seconds.

        Raises:
            ConflictError: It is neither the next call nor the last one.
        """
        self.last_seen = now
        index, request = message.get("i"), _brief(frame)
        if index == self._index and self._answer is not None:
            if request != self._request:
                raise ConflictError(
                    f"call {index} of this session had different contents",
                    hint="number each new call one higher",
                )
            return await self._answer
        if type(index) is not int or index != self._index + 1 or self.busy:
            running = ", which is still running" if self.busy else ""
            raise ConflictError(
                f"call {index!r} is not the next of this session; the last was {self._index}{running}",
                hint="calls are numbered 0, 1, 2, ...; only the last one may be repeated",
            )
        if self.ended is not None:
            raise self.ended
        # The first call creates the environment, too.
        seconds = self._step_timeout if index else 2 * self._step_timeout
        self._call_ends_at = now + seconds
        self._index, self._op, self._request = index, message["op"], request
        self._answer = asyncio.get_running_loop().create_future()
        self.host.call(index, lambda env: self._play(env, message))
        return await self._answer

    def reported(self, report: Report, now: float) -> None:
        """Handle the host's report about a call."""
        self.last_seen = now
        if self._answer is None or self._answer.done() or report.call_id != self._index:
            return
        frame = report.value
        if report.error:
            # `play` catches errors of calls, so this came from the constructor.
            what = report.error.strip().splitlines()[-1]
            frame = encode(
                error_message(failed("the environment's constructor", what, report.error), index=0)
            )
        self._answer.set_result(frame)

    def _play(self, env: AnyEnv | EnvironmentProcess, message: Message) -> Frame:
        if not isinstance(env, EnvironmentProcess):
            return play(env, message, self._most_bytes)
        try:
            # Frames are built in the environment's process, so the server's process spends nothing on them.
            frame: Frame = env.apply(play, message, self._most_bytes)
        except ForwardedError as error:
            gone = EnvironmentGoneError(
                error.text, hint="its last words are in the server's output; reset begins another"
            )
            return encode(error_message(gone, index=message["i"]))
        return frame

    def overdue(self, now: float) -> bool:
        """Whether a call has exceeded its time limit."""
        return self.busy and now >= self._call_ends_at

    def give_up(self) -> None:
        """Respond to the hanging call with an error, and abandon its environment."""
        assert self._answer is not None
        where = with_relative_paths(self.host.where())
        at = f"; it is here:\n{where.rstrip()}" if where else ""
        error = EnvironmentTimeoutError(
            f"{self._op} did not return within the server's {self._step_timeout:g} s{at}",
            hint="the environment was abandoned; reset starts another",
        )
        self.ended = error
        self._answer.set_result(encode(error_message(error, index=self._index)))
        self.host.abandon()

    def end(self, reason: TinkerGymError) -> None:
        """Make no further calls, and close the environment after the running one."""
        if self.ended is None:
            self.ended = reason
            self.host.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(encode(error_message(reason)))
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end(reason)


def _brief(frame: Frame) -> Frame:
    if len(frame) <= _MOST_KEPT:
        return frame
    return hashlib.sha256(frame.encode() if isinstance(frame, str) else frame).digest()
