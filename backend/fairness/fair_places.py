"""A limited number of places, shared fairly between tenants: which requests get one, and which wait.

It only counts; it does not depend on requests or processes. Engines with their own queue use it for sampling
requests, and the gateway for the processes that check jobs.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class FairPlaces:
    """Places that requests hold until they are removed; the tenant with the fewest comes first."""

    places: int
    """Limit for the total."""
    most_of_one: int = 0
    """Limit per tenant; 0 leaves an eighth of the places free for other tenants' first requests."""
    _owners: dict[int, str] = field(default_factory=dict)
    _held: Counter[str] = field(default_factory=Counter)
    _waiting: OrderedDict[str, deque[int]] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.most_of_one = self.most_of_one or max(1, self.places - self.places // 8)

    def add(self, number: int, owner: str) -> None:
        """Queue a request."""
        self._waiting.setdefault(owner, deque()).append(number)

    def remove(self, number: int) -> None:
        """Remove a request, wherever it is."""
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
        """Return whether a request has a place."""
        return number in self._owners
