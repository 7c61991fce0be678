"""The memory of our processes, as they last said themselves. Asking does not wait for an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future

OnNode = tuple[str, int]
"""Ray's id of a process's node, and the process's memory there in bytes, with its children."""


class ProcessMemory:
    """Asks each process again when it has answered."""

    def __init__(self) -> None:
        self._known: dict[str, OnNode] = {}
        self._asked: dict[str, Future[OnNode]] = {}

    def ask(self, processes: Mapping[str, Callable[[], Future[OnNode]]]) -> dict[str, OnNode]:
        """Ask processes by id, and return what those said that have answered before."""
        for who, promise in list(self._asked.items()):
            if promise.done():
                del self._asked[who]
                if promise.exception() is None:
                    self._known[who] = promise.result()
        self._known = {who: said for who, said in self._known.items() if who in processes}
        for who in processes.keys() - self._asked.keys():
            self._asked[who] = processes[who]()
        return dict(self._known)
