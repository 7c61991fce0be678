"""Evaluations that the service plays: one process for each, one at a time for each tenant, few for all."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator
from contextlib import suppress

from backend.config import CONFIG_VARIABLE, GatewayLimits
from tinkergym.errors import InternalServiceError, TinkerGymError, TooManyRequestsError
from tinkergym.wire import ErrorView
from tinkergym.wire_evaluation import EvaluationLine, EvaluationRequest

_BEAT_SECONDS = 5.0
"""After so much silence an empty line says that the evaluation still lives."""
_CHUNK_BYTES = 64 * 1024
_MOST_OF_A_TENANT = 4
"""Evaluations of one tenant that play or wait; further ones are refused."""


class Evaluations:
    """Starts the processes, and bounds how many there are."""

    def __init__(self, limits: GatewayLimits) -> None:
        self._all = asyncio.Semaphore(limits.evaluations_at_once)
        self._of_tenant: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._there: Counter[str] = Counter()
        self._seconds = limits.evaluation_seconds

    def admit(self, tenant_id: str) -> None:
        """Refuse a tenant's evaluation if too many of theirs wait already.

        Raises:
            TooManyRequestsError: They do.
        """
        if self._there[tenant_id] >= _MOST_OF_A_TENANT:
            raise TooManyRequestsError(
                f"{_MOST_OF_A_TENANT} of your evaluations play or wait already",
                hint="try again when one has ended",
            )

    async def lines(
        self, tenant_id: str, wanted: EvaluationRequest, url: str, key: str
    ) -> AsyncGenerator[bytes, None]:
        """Wait for a turn, play, and yield whole lines; closing it ends the process."""
        self._there[tenant_id] += 1
        try:
            playing = self._played(tenant_id, {"wanted": wanted.model_dump(), "url": url, "key": key})
            step = asyncio.ensure_future(anext(playing, None))
            try:
                while True:
                    done, _ = await asyncio.wait({step}, timeout=_BEAT_SECONDS)
                    if not done:
                        yield b"\n"
                        continue
                    if (chunk := step.result()) is None:
                        return
                    yield chunk
                    step = asyncio.ensure_future(anext(playing, None))
            finally:
                step.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await step
                await playing.aclose()
        finally:
            self._there[tenant_id] -= 1

    async def _played(self, tenant_id: str, question: dict[str, object]) -> AsyncGenerator[bytes, None]:
        async with self._of_tenant[tenant_id], self._all:
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "backend.gateway.evaluation_child"),
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                env={name: value for name, value in os.environ.items() if name != CONFIG_VARIABLE},
                start_new_session=True,
            )
            try:
                async with asyncio.timeout(self._seconds):
                    async for chunk in _whole_lines(child, json.dumps(question).encode()):
                        yield chunk
                if code := await child.wait():
                    yield _error(
                        InternalServiceError(
                            f"the process that played the evaluation ended with code {code}",
                            hint="the environment crashed it; look at it with tinkergym check",
                        )
                    )
            except TimeoutError:
                yield _error(
                    InternalServiceError(
                        f"the evaluation took more than {self._seconds:g} s",
                        hint="ask for fewer episodes, or let the operator raise limits.evaluation_seconds",
                    )
                )
            finally:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
                await child.wait()


async def _whole_lines(child: Process, question: bytes) -> AsyncGenerator[bytes, None]:
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(question)
    with suppress(ConnectionError):  # it ended already; its exit code says more
        await child.stdin.drain()
    child.stdin.close()
    rest = b""
    while chunk := await child.stdout.read(_CHUNK_BYTES):
        whole, newline, rest = (rest + chunk).rpartition(b"\n")
        if newline:
            yield whole + newline


def _error(error: TinkerGymError) -> bytes:
    return EvaluationLine(error=ErrorView(**error.to_wire())).model_dump_json().encode() + b"\n"
