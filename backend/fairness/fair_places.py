"""A limited number of places, shared fairly between owners, who are tenants or keys.

It only counts; it does not depend on requests, threads or processes. Everything in the service that bounds
what one tenant may take counts here: engines and the gateway's threads queue for places, open requests and
bytes of bodies take places or are refused.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from typing import Self


@dataclass(slots=True)
class FairPlaces:
    """Places that are held until they are given back; who waits gets one when it holds the fewest.

    What is taken never exceeds `places`. An owner never holds more than `most_of_one`, except with a single
    take that alone is larger.
    """

    places: float
    """Limit for the total; may be infinite."""
    most_of_one: float = 0
    """Limit per owner; 0 leaves an eighth of the places free for other owners' first requests."""
    _taken: int = 0
    _held: Counter[str] = field(default_factory=Counter)
    _owners: dict[int, str] = field(default_factory=dict)
    """Requests with a place."""
    _overdue: set[int] = field(default_factory=set)
    _waiting: OrderedDict[str, deque[int]] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.most_of_one = self.most_of_one or max(1, self.places - self.places // 8)

    # --- taken at once, or refused ---

    def held(self, owner: str) -> int:
        """Return how many places an owner holds."""
        return self._held[owner]

    def take(self, owner: str, count: int = 1) -> bool:
        """Take all of these places now, or none."""
        held = self._held[owner]
        if self._taken + count > self.places or (held and held + count > self.most_of_one):
            return False
        self._taken += count
        self._held[owner] += count
        return True

    def give(self, owner: str, count: int = 1) -> None:
        """Give places back."""
        self._taken -= count
        self._release(owner, count)

    # --- waited for ---

    def is_full(self, owner: str) -> bool:
        """Whether another request of this owner would wait."""
        return owner in self._waiting or self._taken >= self.places or self._held[owner] >= self.most_of_one

    def add(self, number: int, owner: str) -> None:
        """Queue a request."""
        self._waiting.setdefault(owner, deque()).append(number)

    def remove(self, number: int) -> None:
        """Remove a request, wherever it is."""
        owner = self._owners.pop(number, None)
        if owner is not None:
            self._taken -= number not in self._overdue
            self._overdue.discard(number)
            self._release(owner, 1)
            return
        for owner, line in list(self._waiting.items()):
            if number in line:
                line.remove(number)
                if not line:
                    del self._waiting[owner]

    def outstay(self, number: int) -> None:
        """From now on a request's place counts against its owner only, and no longer against the total."""
        if number in self._owners and number not in self._overdue:
            self._overdue.add(number)
            self._taken -= 1

    def admit(self) -> list[int]:
        """Return the requests that get a place now."""
        admitted: list[int] = []
        while self._taken < self.places:
            owner = min(self._waiting, key=lambda each: self._held[each], default="")
            # No waiting owner holds fewer places: if this one is at its limit, all are.
            if not self._waiting or self._held[owner] >= self.most_of_one:
                break
            line = self._waiting[owner]
            number = line.popleft()
            if line:
                # Owners that hold equally many take turns: `min` chooses the first of them.
                self._waiting.move_to_end(owner)
            else:
                del self._waiting[owner]
            self._owners[number] = owner
            self._taken += 1
            self._held[owner] += 1
            admitted.append(number)
        return admitted

    def inside(self, number: int) -> bool:
        """Return whether a request has a place."""
        return number in self._owners

    def _release(self, owner: str, count: int) -> None:
        self._held[owner] -= count
        if not self._held[owner]:
            del self._held[owner]


@dataclass(slots=True)
class Hold:
    """Places that one owner takes during a block; those that are left are given back at its end."""

    places: FairPlaces
    owner: str
    count: int = 0

    def take(self, count: int = 1) -> bool:
        """Take more now, or none."""
        taken = self.places.take(self.owner, count)
        self.count += count if taken else 0
        return taken

    def give(self, count: int) -> None:
        """Give some back, at most those that are held."""
        count = min(count, self.count)
        self.count -= count
        if count:
            self.places.give(self.owner, count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.give(self.count)
