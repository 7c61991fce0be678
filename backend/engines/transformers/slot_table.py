"""Which sequence is in which slot of the cache, and which slot the next one gets.

A slot whose request is answered keeps its sequence until the space is needed: the episode's next turn reuses
its past, and an equal prompt its computed part.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from backend.engines.transformers.loaded_policies import LoadedPolicy
from backend.engines.transformers.slot_cache import SlotCache
from tinkergym.schema.ids import SeatRef

_LENGTH_STEP = 64

PromptKey = tuple[LoadedPolicy, str, tuple[int, ...]]
"""Policy, owner and tokens: response times would reveal that a shared prompt is cached."""


@dataclass(slots=True)
class Counters:
    """What an engine has done since its start; they survive its schedulers and slot tables."""

    iterations: int = 0
    """Forward passes of the model."""
    prefilled_tokens: int = 0
    """Computed prompt tokens."""
    copied_tokens: int = 0
    """Prompt tokens copied from another request with the same prompt."""
    reused_tokens: int = 0
    """Prompt tokens found in the slot of the request's session."""
    sampled_tokens: int = 0
    evictions: int = 0
    """Cached sequences evicted while they could still have been reused."""
    failed_forwards: int = 0
    preemptions: int = 0
    """Requests preempted for lack of memory and computed again."""


@dataclass(eq=False, slots=True)
class Slot:
    """One slot of the cache."""

    index: int
    tokens: list[int] = field(default_factory=list)
    """The sequence; the request's own list while it is being processed."""
    cached: int = 0
    """How many of `tokens`, from the start, have keys and values here."""
    policy: LoadedPolicy | None = None
    session: tuple[str, SeatRef] | None = None
    owner: str = ""
    prompt: PromptKey | None = None
    busy: bool = False
    last_used: int = 0

    @property
    def reusable(self) -> bool:
        """Whether the stored data can still be used."""
        return self.policy is not None and self.policy.live


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLimits:
    """How far the cache can grow."""

    slots: int
    bytes: int
    """Soft: a single sequence may always grow to `length`."""
    length: int
    """Tokens of the longest sequence."""
    first_slots: int = 16
    first_length: int = 128
    """Initial size; a known size avoids growing later."""


class SlotTable:
    """The slots of one cache."""

    def __init__(
        self,
        limits: SlotLimits,
        counters: Counters,
        *,
        bytes_per_token: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._limits, self._counters = limits, counters
        self._token_limit = limits.bytes // bytes_per_token
        first_length = self._filled_up(limits.first_length)
        first_slots = max(1, min(limits.first_slots, limits.slots, self._token_limit // first_length))
        self.cache = SlotCache(slots=first_slots, length=first_length, device=device, dtype=dtype)
        self.slots = [Slot(index) for index in range(first_slots)]
        # Each entry points to the slot with that session's or prompt's tokens; `_forget` removes entries and
        # tokens together.
        self._sessions: dict[tuple[str, SeatRef], Slot] = {}
        self._prompts: dict[PromptKey, Slot] = {}
        self._clock = 0
        self._busy = 0
        self._copies: dict[tuple[Slot, int], list[Slot]] = {}

    def take(
        self, policy: LoadedPolicy, session_id: str, tokens: list[int], parked: Slot | None = None
    ) -> Slot | None:
        """Assign a slot to a sequence, with as much of its past as is stored anywhere.

        At least its last token remains to be computed, because its logits are wanted. `parked` is its slot
        before it was preempted.

        Returns:
            The slot, or None if all are busy.
        """
        seat = SeatRef.parse(session_id)
        session = (policy.name, seat) if seat.lease else None
        slot = self._session_slot(session, policy)
        # The same list object: no other request has used the slot since.
        if parked is not None and not parked.busy and parked.tokens is tokens and parked.policy is policy:
            slot = parked
        if slot is not None:
            # Making room may drop idle slots; this one is in use from here on.
            self._set_busy(slot, busy=True)
            if not self._reserve(len(tokens), busy=self._busy):
                self._set_busy(slot, busy=False)
                return None
            slot.cached = min(_common_prefix(slot.tokens, tokens, slot.cached), len(tokens) - 1)
            # From `cached` on the slot is written anew, so the prompt can be copied no more.
            if slot.prompt is not None and slot.cached < len(slot.prompt[2]):
                self._forget_prompt(slot)
        else:
            reserved = self._reserve(len(tokens), busy=self._busy + 1)
            slot = self._free_slot(len(tokens)) if reserved else None
            if slot is None:
                return None
            self._forget(slot)
            # A second request of a session whose slot is busy keeps no past for the next turn.
            if session is not None and session not in self._sessions:
                slot.session = session
                self._sessions[session] = slot
        self._clock += 1
        slot.last_used = self._clock
        slot.tokens, slot.policy, slot.owner = tokens, policy, seat.owner
        self._set_busy(slot, busy=True)
        return slot

    def prompt_key(self, slot: Slot) -> PromptKey:
        """Return the key under which the slot's sequence can be shared."""
        assert slot.policy is not None
        return slot.policy, slot.owner, tuple(slot.tokens)

    def copy_prompt(self, slot: Slot) -> bool:
        """Fill a new slot from another one with the same sequence; return whether there was one.

        The contents arrive with `finish_copies`.
        """
        source = self._prompts.get(self.prompt_key(slot))
        if source is None or source is slot or source.cached < len(slot.tokens):
            return False
        slot.cached = len(slot.tokens) - 1
        if slot.cached:
            if any(pending is slot for pending, _ in self._copies):
                # The slot was idle, its contents were promised to others, and then it was taken: they come
                # first.
                self.finish_copies()
            self._copies.setdefault((source, slot.cached), []).append(slot)
        return True

    def forget_past(self, slot: Slot) -> None:
        """Recompute a busy slot's sequence from its first token."""
        slot.cached = 0
        if slot.prompt is not None:
            self._forget_prompt(slot)

    def finish_copies(self) -> None:
        """Perform the copies announced by `copy_prompt`, for all targets of a prompt at once."""
        for (source, tokens), targets in self._copies.items():
            self.cache.copy(source.index, [target.index for target in targets], tokens)
        self._copies.clear()

    def remember_prompt(self, slot: Slot) -> None:
        """Make this fully cached prompt available to later requests."""
        if slot.prompt is None:
            slot.prompt = self.prompt_key(slot)
            self._prompts.setdefault(slot.prompt, slot)

    def release(self, slot: Slot) -> None:
        """Mark a slot as idle; its contents stay for the next turn."""
        self._set_busy(slot, busy=False)

    def discard(self, slot: Slot) -> None:
        """Mark a slot as idle and clear it: none of its data, especially NaN, may reach another sequence."""
        self._forget(slot)
        self._set_busy(slot, busy=False)
        self.cache.clear(slot.index)

    def grow_for(self, tokens: int) -> bool:
        """Make room for busy sequences of this length; False means that some must give up their slots."""
        if tokens <= self.cache.length:
            return True
        return self._lengthen(tokens, at_least=self._busy)

    def _session_slot(self, session: tuple[str, SeatRef] | None, policy: LoadedPolicy) -> Slot | None:
        slot = self._sessions.get(session) if session is not None else None
        if slot is None or slot.busy:
            return None
        # Keys and values of another version are of no use.
        if slot.policy is not policy:
            self._forget(slot)
            return None
        return slot

    def _set_busy(self, slot: Slot, *, busy: bool) -> None:
        self._busy += busy - slot.busy
        slot.busy = busy

    def _reserve(self, tokens: int, *, busy: int) -> bool:
        # One more than the prompt, for the first sampled token.
        return tokens < self.cache.length or self._lengthen(tokens + 1, at_least=busy)

    def _lengthen(self, tokens: int, *, at_least: int) -> bool:
        # Twice as long, so that a growing sequence is rarely moved; but less is better than refusing it.
        for wanted in (max(tokens, 2 * self.cache.length), tokens):
            length = self._filled_up(wanted, at_least=tokens)
            count = max(1, min(len(self.slots), self._token_limit // length))
            # One sequence alone may exceed the memory limit, or it would wait forever.
            if count >= at_least or at_least <= 1:
                self._resize(max(count, at_least), length)
                return True
        return False

    def _filled_up(self, length: int, *, at_least: int = 0) -> int:
        return max(min(-(-length // _LENGTH_STEP) * _LENGTH_STEP, self._limits.length), at_least)

    def _free_slot(self, tokens: int) -> Slot | None:
        # First a slot with nothing to lose, then more slots, and only then one whose past may be wanted.
        idle = [slot for slot in self.slots if not slot.busy]
        unused = next((slot for slot in idle if not slot.reusable), None)
        if unused is not None:
            return unused
        had = len(self.slots)
        if had < self._limits.slots:
            for length in (self.cache.length, self._shorter(tokens)):
                count = min(2 * had, self._limits.slots, self._token_limit // length)
                if count > had:
                    self._resize(count, length)
                    return self.slots[had]
        oldest = min(idle, key=lambda slot: slot.last_used, default=None)
        if oldest is not None:
            self._counters.evictions += 1
        return oldest

    def _shorter(self, tokens: int) -> int:
        """Return the required slot length; the current one, if it is at most twice as long.

        One long sequence makes all slots long and therefore few. Once it is gone and its cache is evicted,
        there can be many again.
        """
        kept = (len(slot.tokens) for slot in self.slots if slot.busy or slot.reusable)
        length = self._filled_up(max([tokens, *kept]) + 1)
        return length if 2 * length <= self.cache.length else self.cache.length

    def _resize(self, count: int, length: int) -> None:
        self.finish_copies()
        # Copies were announced before: their sources may be among the slots that go.
        kept = self.slots
        if count < len(self.slots):
            ranked = sorted(
                self.slots, key=lambda slot: (slot.busy, slot.reusable, slot.last_used), reverse=True
            )
            for slot in ranked[count:]:
                self._counters.evictions += slot.reusable
                self._forget(slot)
            staying = set(ranked[:count])
            kept = [slot for slot in self.slots if slot in staying]
        self.cache.resize(slots=count, length=length, keep={slot.index: new for new, slot in enumerate(kept)})
        for new, slot in enumerate(kept):
            slot.index = new
        self.slots = kept + [Slot(index) for index in range(len(kept), count)]

    def _forget(self, slot: Slot) -> None:
        if slot.session is not None:
            self._sessions.pop(slot.session, None)
        self._forget_prompt(slot)
        slot.tokens, slot.cached, slot.policy, slot.session = [], 0, None, None

    def _forget_prompt(self, slot: Slot) -> None:
        if slot.prompt is not None and self._prompts.get(slot.prompt) is slot:
            del self._prompts[slot.prompt]
        slot.prompt = None


def _common_prefix(stored: list[int], wanted: list[int], limit: int) -> int:
    limit = min(limit, len(wanted))
    # The usual case, a conversation that only grew, is one comparison in C.
    if stored[:limit] == wanted[:limit]:
        return limit
    return next(index for index in range(limit) if stored[index] != wanted[index])
