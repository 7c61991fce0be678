"""vLLM's sleep, in the process that runs it."""

from __future__ import annotations

import asyncio
from typing import Any


class HostSleep:
    """vLLM sleeps and wakes once each, however often it is asked to, and one after the other."""

    def __init__(self, engine: Any) -> None:
        """`engine` is vLLM's, which is awake."""
        self._engine = engine
        self._asleep = False
        self._changing = asyncio.Lock()

    @property
    def has_begun(self) -> bool:
        """Whether vLLM sleeps, or is on its way there or back."""
        return self._asleep or self._changing.locked()

    async def begin(self, message: dict[str, Any]) -> dict[str, Any]:
        """Let vLLM free memory; the other end has no request in progress."""
        async with self._changing:
            if not self._asleep:
                await self._engine.sleep(level=1, mode="wait")
                self._asleep = True
        return {}

    async def end(self, message: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return when vLLM is awake."""
        if not self.has_begun:
            return {}
        async with self._changing:
            if self._asleep:
                await self._engine.wake_up()
                self._asleep = False
        return {}
