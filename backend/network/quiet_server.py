"""uvicorn, without waking ten times a second."""

from __future__ import annotations

import asyncio
import contextlib
from types import FrameType

import uvicorn


class QuietServer(uvicorn.Server):
    """Waits to be told to exit; only the time in its responses' headers is renewed, once a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told = asyncio.Event()
        self._serving: asyncio.AbstractEventLoop | None = None

    def tell_to_exit(self) -> None:
        """Let it exit at once; called from any thread, or from a signal's handler."""
        self.should_exit = True
        if self._serving is not None:
            with contextlib.suppress(RuntimeError):  # It has ended.
                self._serving.call_soon_threadsafe(self._told.set)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """See uvicorn: a signal arrived."""
        super().handle_exit(sig, frame)
        self.tell_to_exit()

    async def main_loop(self) -> None:
        """Run until told to exit."""
        self._serving = asyncio.get_running_loop()
        ticks = 0  # of 0.1 s, as uvicorn counts
        while not await self.on_tick(ticks):
            ticks += 10
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._told.wait(), 1.0)
