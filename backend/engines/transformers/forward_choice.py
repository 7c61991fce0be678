"""Which requests a step computes, and in which forwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace

from backend.engines.forward_shares import ForwardShares, cost
from backend.engines.transformers.loaded_policies import LoadedPolicies, LoadedPolicy
from backend.engines.transformers.request_state import RequestState
from backend.engines.transformers.slot_table import Slot

_SCORED_AT_ONCE = 256
"""Prompt tokens whose logprobs are computed in one forward: each needs a row of logits, and with a vocabulary
of 150,000 they need 150 MB."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one request computes in one forward."""

    state: RequestState
    slot: Slot
    tokens: int
    twins: list[RequestState] = field(default_factory=list)
    """Requests at the same position of the same sequence, as after a group's prompt. They have the same
    logits and copy the result."""

    @property
    def states(self) -> list[RequestState]:
        """All requests that this work advances."""
        return [self.state, *self.twins]


class ForwardChoice:
    """A step computes each active request that waits for none at most once.

    No forward mixes policies that cannot share one.
    """

    def __init__(
        self,
        policies: LoadedPolicies,
        shares: ForwardShares,
        iteration_tokens: int,
        clock: Callable[[], float],
    ) -> None:
        self._policies, self._shares = policies, shares
        self._iteration_tokens, self._clock = iteration_tokens, clock

    def forwards(
        self, active: Sequence[RequestState], waiting: Set[str], scoring: Set[RequestState]
    ) -> list[list[Work]]:
        """Return the works of each forward of a step.

        Args:
            active: Requests in slots.
            waiting: The owners of those that wait for one.
            scoring: Active requests whose prompt logprobs are missing: they have forwards of their own.
        """
        works = self._chosen_work(active, waiting)
        if not scoring:
            return self._mixed(works)
        works = _in_parts(works, scoring)
        scored = [work for work in works if work.state in scoring]
        return self._mixed([work for work in works if work.state not in scoring]) + self._mixed(scored)

    def can_wait(self, works: Sequence[Work], waiting: Set[str]) -> bool:
        """Whether the device may be shared with others who wait for it."""
        owners = {work.state.owner for work in works}
        return self._shares.shared and self._shares.can_wait(owners, waiting)

    def _chosen_work(self, active: Sequence[RequestState], waiting: Set[str]) -> list[Work]:
        works, left = [], self._iteration_tokens
        # Not by their tokens: hashing a long conversation for every token costs more than the token.
        places: dict[tuple[LoadedPolicy, str, Hashable, int], list[RequestState]] = {}
        for state in active:
            if state.waits_for is None:
                place = state.policy, state.place.owner, state.path, state.place.cached
                places.setdefault(place, []).append(state)
        owners = {state.owner for state in active} | waiting
        self._shares.note(owners, self._clock(), waiting)
        if self._shares.shared:
            return self._shared_work(places.values(), waiting)
        # Requests with one token to go come first: they are short and someone waits for each.
        for single in (True, False):
            for state, *twins in places.values():
                pending = state.pending
                if (pending == 1) is single and left > 0:
                    works.append(Work(state, state.place, min(pending, left), twins))
                    left -= works[-1].tokens
        return works

    def _shared_work(self, places: Iterable[list[RequestState]], waiting: Set[str]) -> list[Work]:
        """Choose which requests of each tenant are computed, those that waited longest first."""
        works = []
        ordered = sorted(places, key=lambda states: (states[0].pending > 1, states[0].turn))
        wanted: Counter[str] = Counter()
        for state, *_ in ordered:
            wanted[state.owner] += cost(state.pending, state.place.cached)
        left = self._shares.divided(wanted, waiting)
        begun: set[str] = set()
        for state, *twins in ordered:
            # One request's next token is always computed, even if its past is long.
            least = 0 if state.owner in begun else 1
            tokens = min(state.pending, max(least, left[state.owner] - cost(0, state.place.cached)))
            if tokens > 0:
                begun.add(state.owner)
                works.append(Work(state, state.place, tokens, twins))
                left[state.owner] -= cost(tokens, state.place.cached)
        return works

    def _mixed(self, works: list[Work]) -> list[list[Work]]:
        by_policy: dict[LoadedPolicy, list[Work]] = {}
        for work in works:
            by_policy.setdefault(work.state.policy, []).append(work)
        policies = self._policies
        mixed = [work for policy, own in by_policy.items() if policies.can_mix(policy) for work in own]
        alone = [own for policy, own in by_policy.items() if not policies.can_mix(policy)]
        return [*([mixed] if mixed else []), *alone]


def _in_parts(works: list[Work], scoring: Set[RequestState]) -> list[Work]:
    """Keep as much of the scored prompts as fits into one forward; the rest follows later."""
    parts, left = [], _SCORED_AT_ONCE
    for work in works:
        if work.state not in scoring:
            parts.append(work)
        elif left > 0:
            parts.append(replace(work, tokens=min(work.tokens, left)))
            left -= parts[-1].tokens
    return parts
