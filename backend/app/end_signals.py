"""Ctrl-C, SIGTERM and SIGHUP are counted instead of raised in the middle of something."""

from __future__ import annotations

import signal


class EndSignals:
    """Counts termination signals while the block runs."""

    def __init__(self) -> None:
        self.count = 0
        """The number of signals; a second one means: end at once."""
        self._before: dict[int, object] = {}

    @property
    def came(self) -> bool:
        """Whether there was one."""
        return self.count > 0

    def __enter__(self) -> EndSignals:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # As requested by nohup.
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, _number: int, _frame: object) -> None:
        self.count += 1
