"""Evaluations played by the service: one process each, one at a time per tenant, few in all."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import suppress
from math import inf
from typing import TypeVar

from backend.fairness.fair_places import FairPlaces, Hold
from backend.fairness.turns import Turns
from backend.processes import quick_start
from backend.processes.foreign_code import environment_for_packs
from backend.settings.gateway_limits import GatewayLimits
from tinkergym.errors import InternalServiceError, TinkerGymError, TooManyRequestsError
from tinkergym.schema.evaluation import (
    BranchRequest,
    CrossPlayRequest,
    EvaluationLine,
    EvaluationRequest,
)
from tinkergym.schema.events import ErrorView

Value = TypeVar("Value")

_BEAT_SECONDS = 5.0
"""After this much silence an empty line shows that the evaluation is still running."""
_CHUNK_BYTES = 64 * 1024
_MOST_LINE_BYTES = 64 * 2**20
"""Bytes of one episode. The process runs foreign code, which may write there too."""
_MOST_OF_A_TENANT = 4
"""Running or waiting evaluations of one tenant; further ones are refused."""


class StoredBranch(BranchRequest):
    """A branch, with the episode that it continues."""

    job_id: str
    episode_id: str


class CrossPlayOfJob(CrossPlayRequest):
    """A cross-play, with the job whose policies play."""

    job_id: str


Playable = EvaluationRequest | StoredBranch | CrossPlayOfJob
"""What such a process plays."""


class ServiceEvaluations:
    """Starts the processes, and limits their number."""

    def __init__(self, limits: GatewayLimits, environment_variables: Sequence[str] = ()) -> None:
        self._environment_variables = environment_variables
        self._turns = Turns(FairPlaces(limits.evaluations_at_once, most_of_one=1))
        self._there = FairPlaces(inf, most_of_one=_MOST_OF_A_TENANT)
        self._seconds = limits.evaluation_seconds

    def entered(self, tenant_id: str) -> Hold:
        """Count an evaluation, running or waiting.

        Raises:
            TooManyRequestsError: The tenant has too many.
        """
        hold = Hold(self._there, tenant_id)
        if not hold.take():
            raise TooManyRequestsError(
                f"{_MOST_OF_A_TENANT} of your evaluations are already running or waiting",
                hint="try again when one has ended",
            )
        return hold

    async def lines(
        self, tenant_id: str, wanted: Playable, url: str, key: str
    ) -> AsyncGenerator[bytes, None]:
        """Wait for a turn, play, and yield whole lines; closing it ends the process."""
        question: dict[str, object] = {
            "kind": type(wanted).__name__,
            "wanted": wanted.model_dump(),
            "url": url,
            "key": key,
        }
        playing = self._played(tenant_id, question)
        # A task, because a timeout of `wait_for` would cancel the generator at each beat.
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

    async def _played(self, tenant_id: str, question: dict[str, object]) -> AsyncGenerator[bytes, None]:
        async with self._turns.taken(tenant_id):
            child = await asyncio.create_subprocess_exec(
                *quick_start.command("backend.evaluations.evaluation_child"),
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                env=environment_for_packs(self._environment_variables),
                start_new_session=True,
            )
            deadline = asyncio.get_running_loop().time() + self._seconds
            try:
                lines = _whole_lines(child, json.dumps(question).encode())
                # Around each wait: a timeout belongs to a task, and each chunk is requested by another one.
                while chunk := await _until(deadline, anext(lines, b"")):
                    yield chunk
                if code := await _until(deadline, child.wait()):
                    yield _error(
                        InternalServiceError(
                            f"the process that played the evaluation ended with code {code}",
                            hint="the environment crashed it; check it with tinkergym check",
                        )
                    )
            except TimeoutError:
                yield _error(
                    InternalServiceError(
                        f"the evaluation took more than {self._seconds:g} s",
                        hint="ask for fewer episodes, or ask the operator to raise limits.evaluation_seconds",
                    )
                )
            except InternalServiceError as error:
                yield _error(error)
            finally:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
                # asyncio only reports its end after all of its output is read.
                assert child.stdout is not None
                while await child.stdout.read(_CHUNK_BYTES):
                    pass
                await child.wait()


async def _until(deadline: float, awaited: Awaitable[Value]) -> Value:
    async with asyncio.timeout_at(deadline):
        return await awaited


async def _whole_lines(child: Process, question: bytes) -> AsyncGenerator[bytes, None]:
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(question)
    with suppress(ConnectionError):  # It has already ended; its exit code has more information.
        await child.stdin.drain()
    child.stdin.close()
    rest = bytearray()
    while chunk := await child.stdout.read(_CHUNK_BYTES):
        whole, newline, begun = chunk.rpartition(b"\n")
        if newline:
            yield bytes(rest) + whole + newline
            rest.clear()
        rest += begun
        if len(rest) > _MOST_LINE_BYTES:
            raise InternalServiceError(
                f"an episode of the evaluation has a record of more than {_MOST_LINE_BYTES} bytes",
                hint="make the environment's observations shorter",
            )


def _error(error: TinkerGymError) -> bytes:
    return EvaluationLine(error=ErrorView(**error.to_wire())).model_dump_json().encode() + b"\n"
