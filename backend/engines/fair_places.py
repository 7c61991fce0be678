"""Which requests an engine with a queue of its own is given, and which wait here, so that tenants share it.

Pure bookkeeping of numbers; knows neither requests nor processes.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class FairPlaces:
    """Places in the engine. The tenant with the fewest comes first; what is in is not taken out again."""

    places: int
    _owners: dict[int, str] = field(default_factory=dict)
    """Of everything that is in."""
    _held: Counter[str] = field(default_factory=Counter)
    _waiting: OrderedDict[str, deque[int]] = field(default_factory=OrderedDict)

    @property
    def most_of_one(self) -> int:
        """Places of one tenant. The rest stays free for another tenant's first requests."""
        return max(1, self.places - self.places // 8)

    def add(self, number: int, owner: str) -> None:
        """Queue a request."""
        self._waiting.setdefault(owner, deque()).append(number)

    def remove(self, number: int) -> None:
        """Forget a request, wherever it is."""
        owner = self._owners.pop(number, None)
        if owner is not None:
            self._held[owner] -= 1
            return
        for owner, line in list(self._waiting.items()):
            if number in line:
                line.remove(number)
                if not line:
                    del self._waiting[owner]

    def admit(self) -> list[int]:
        """Return the requests that get a place now."""
        admitted: list[int] = []
        while len(self._owners) < self.places:
            owner = min(self._waiting, key=lambda each: self._held[each], default="")
            if not self._waiting or self._held[owner] >= self.most_of_one:
                break
            line = self._waiting[owner]
            number = line.popleft()
            if line:
                self._waiting.move_to_end(owner)
            else:
                del self._waiting[owner]
            self._owners[number] = owner
            self._held[owner] += 1
            admitted.append(number)
        return admitted

    def inside(self, number: int) -> bool:
        """Whether a request has a place."""
        return number in self._owners
