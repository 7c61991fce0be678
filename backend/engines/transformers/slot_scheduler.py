"""The slot scheduler: processes many requests at once, one packed forward after the other.

It does not use threads: its owner calls `step` in a loop. Requests enter between two steps; every step
computes what each of them needs next, either the rest of a prompt or the newest sampled token.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from backend.compute.device_lock import computing_with
from backend.engines.failures import sender_gone, version_gone
from backend.engines.forward_shares import ForwardShares
from backend.engines.token_sampling import choose_tokens, likeliest_tokens, scores_of
from backend.engines.transformers.fair_queue import FairQueue, Held
from backend.engines.transformers.forward_choice import ForwardChoice, Work
from backend.engines.transformers.loaded_policies import AdapterSegment, LoadedPolicy
from backend.engines.transformers.packed_batch import Span
from backend.engines.transformers.packed_model import PackedModel
from backend.engines.transformers.request_state import RequestState
from backend.engines.transformers.slot_table import Counters, PromptKey, Slot, SlotLimits, SlotTable
from backend.errors import SERVICE_LOG
from backend.processes.exhaustion import end_if_exhausted, out_of_memory_code
from tinkergym.errors import InternalServiceError, TinkerGymError
from tinkergym.schema.sampling import SampleFailure

_log = logging.getLogger(__name__)

_UNDIVIDED = 10**9
"""Tokens times parameters below which a forward uses one thread: operations of some tenths of a millisecond
gain a third from threads on an idle machine, and lose more if one of them waits for a core, as when a gateway
reads incoming requests."""


class Device(Protocol):
    """The device for forwards, shared with others."""

    def taken(self, *, alone: bool, shares: bool) -> AbstractContextManager[None]:
        """Return a context that holds the device.

        Args:
            alone: Whether one core of a CPU is enough.
            shares: Whether others who wait for the device get as much of its time.
        """
        ...


class SlotScheduler:
    """Requests waiting for a slot, requests in slots, and the forward that advances them."""

    def __init__(
        self,
        model: PackedModel,
        limits: SlotLimits,
        counters: Counters,
        *,
        iteration_tokens: int,
        most_active: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without requests.

        Args:
            model: Computes the forwards.
            limits: Of the slot table.
            counters: Updated.
            iteration_tokens: Most tokens per forward.
            most_active: Most requests computed at a time.
            clock: Used to find the recently active tenants.
        """
        self._model = model
        self._most_active = most_active
        self.table = SlotTable(
            limits, counters, bytes_per_token=model.bytes_per_token, device=model.device, dtype=model.dtype
        )
        self._counters = counters
        self._waiting = FairQueue()
        self._active: list[RequestState] = []
        self._scoring: set[RequestState] = set()
        """Active requests whose prompt logprobs are missing."""
        # The active request that computes a prompt for others. It leaves the map with its prompt
        # (`_share_prompt`) or without (`_leave`), and its followers stop waiting either way.
        self._leaders: dict[PromptKey, RequestState] = {}
        self._choice = ForwardChoice(
            model.policies, ForwardShares.on(model.device.type, iteration_tokens), iteration_tokens, clock
        )

    def add(self, states: Iterable[RequestState]) -> None:
        """Queue requests."""
        self._waiting.extend(states)

    @property
    def idle(self) -> bool:
        """Return whether there is no work."""
        return not self._waiting and not self._active

    @property
    def tenants(self) -> int:
        """The number of tenants with requests."""
        return len({state.owner for state in self._active} | self._waiting.owners)

    def drain(self, error: TinkerGymError) -> list[RequestState]:
        """Answer all requests with an error and return them."""
        states = [*self._active, *self._waiting]
        for state in states:
            state.fail(error)
        self._active.clear()
        self._waiting.clear()
        self._leaders.clear()
        self._scoring.clear()
        return states

    @torch.inference_mode()
    def step(self, device: Device) -> list[RequestState]:
        """Admit requests, compute one forward, and return the answered requests.

        Args:
            device: Held for each forward and its sampling.
        """
        done = self._take_answered()
        self._admit()
        self._make_room()
        for works in self._choice.forwards(self._active, self._waiting.owners, self._scoring):
            self._compute(works, device)
        self.table.finish_copies()
        return done + self._take_answered()

    # --- admission ------------------------------------------------------------------------------------------

    def _take_answered(self) -> list[RequestState]:
        """Answer requests whose policy or requester is gone, and remove all answered requests."""
        states = [*self._active, *self._waiting]
        for state in states:
            # Also requests answered in this step: the publisher was promised that the old version
            # is gone.
            if not state.policy.live:
                state.fail(version_gone(state.request))
            elif state.unwanted:
                state.fail(sender_gone(state.request))
        done = [state for state in states if state.answer is not None]
        for state in done:
            self._leave(state)
        if done:
            self._active = [state for state in self._active if state.answer is None]
            self._waiting.drop_answered()
        return done

    def _admit(self) -> None:
        if not self._waiting:
            return
        held = Held(self._active)
        while self._waiting:
            # Not taken yet: without a free slot the request keeps its place in the queue.
            state = self._waiting.first(held)
            slot = self._slot_for(state)
            if slot is not None:
                state.slot, state.parked = slot, None
                self._find_past(state, slot)
                self._active.append(self._waiting.pop_first(held))
                held.add(state)
                continue
            owner, most = held.by_owner.most_common(1)[0] if held.by_owner else ("", 0)
            # At least two, otherwise two requests would take the slot from each other forever.
            if most < held.by_owner[state.owner] + 2:
                return
            held.add(self._preempt_newest(owner), -1)

    def _slot_for(self, state: RequestState) -> Slot | None:
        if len(self._active) >= self._most_active:
            return None
        return self.table.take(state.policy, state.request.session_id, state.tokens, state.parked)

    def _find_past(self, state: RequestState, slot: Slot) -> None:
        if state.scores_prompt:
            # Scores need the logits of every prompt token, and the cache only has keys and values.
            self.table.forget_past(slot)
            state.score_anew()
            self._scoring.add(state)
            return
        if slot.cached:
            self._counters.reused_tokens += slot.cached
            return
        key = self.table.prompt_key(slot)
        leader = self._leaders.get(key)
        if leader is not None:
            state.waits_for = leader
            leader.followers.append(state)
        elif self.table.copy_prompt(slot):
            self._counters.copied_tokens += slot.cached
        else:
            state.leads = key
            self._leaders[key] = state

    def _make_room(self) -> None:
        # A slot must have room for the tokens about to be computed.
        while self._active:
            longest = max(len(state.tokens) for state in self._active)
            if self.table.grow_for(longest):
                return
            self._preempt_newest(Held(self._active).by_owner.most_common(1)[0][0])

    def _preempt_newest(self, owner: str) -> RequestState:
        # Sampling depends on seed and position only, so the request continues later unchanged.
        # The newest, which has computed the least that another slot would have to compute again.
        state = next(state for state in reversed(self._active) if state.owner == owner)
        self._counters.preemptions += 1
        self._active.remove(state)
        self._leave(state)
        state.slot, state.parked = None, state.slot
        self._waiting.put_back(state)
        return state

    def _leave(self, state: RequestState) -> None:
        self._scoring.discard(state)
        if state.leads is not None:
            del self._leaders[state.leads]
            state.leads = None
        for follower in state.followers:
            # Without a result they compute the prompt themselves, as twins: once for all of them.
            follower.waits_for = None
        state.followers.clear()
        if state.waits_for is not None:
            state.waits_for.followers.remove(state)
            state.waits_for = None
        if state.slot is not None:
            # After a failure nothing vouches for what the slot holds, so no later turn builds on it.
            if isinstance(state.answer, SampleFailure):
                self.table.discard(state.slot)
            else:
                self.table.release(state.slot)

    # --- one forward ----------------------------------------------------------------------------------------

    def _compute(self, works: list[Work], device: Device) -> None:
        alone = self._is_for_one_thread(works)
        try:
            shares = self._choice.can_wait(works, self._waiting.owners)
            threads = computing_with(1) if alone else nullcontext()
            with device.taken(alone=alone, shares=shares), threads:
                self.table.finish_copies()
                self._advance(works)
        except Exception as error:
            _log.exception("a forward of %d requests failed", len(works))
            end_if_exhausted(error)
            self._counters.failed_forwards += 1
            failed = InternalServiceError(
                f"the engine's forward failed: {_in_a_line(error)}",
                hint=f"{SERVICE_LOG} has the traceback; other requests are not affected",
                code=out_of_memory_code(error),
            )
            for state in (state for work in works for state in work.states):
                state.fail(failed)

    def _is_for_one_thread(self, works: list[Work]) -> bool:
        work = sum(work.tokens for work in works) * self._model.parameter_count
        return self._model.device.type == "cpu" and work <= _UNDIVIDED

    def _advance(self, works: list[Work]) -> None:
        works = _in_order(works)
        spans = [Span(work.slot.index, work.slot.cached, work.tokens) for work in works]
        # A prompt that is computed in parts has no next token until its last part.
        wanted = [i for i, work in enumerate(works) if spans[i].end == len(work.state.tokens)]
        token_ids: list[int] = []
        for work, span in zip(works, spans, strict=True):
            token_ids += work.state.tokens[span.start : span.end]
        # All or none: a forward never mixes scored prompts with other work.
        if works[0].state in self._scoring:
            logits = self._scored(works, spans, token_ids)
            wanted = [index for index in wanted if works[index].state.answer is None]
            logits = logits[wanted]
        else:
            segments = _segments(works, wanted)
            rope = self._model.rope([work.state.request for work in works], spans)
            logits = self._model.logits(token_ids, spans, wanted, segments, self.table.cache, rope=rope)
        self._counters.iterations += 1
        # Before tokens are drawn: sharing a prompt copies as much as `cached` says.
        _hand_to_twins(works, self.table, self._counters.iterations)
        for work in works:
            sampled = len(work.state.logprobs)
            self._counters.prefilled_tokens += work.tokens if not sampled else 0
            self._counters.copied_tokens += work.tokens * len(work.twins) if not sampled else 0
        self._sample([works[index] for index in wanted], logits)

    def _scored(self, works: list[Work], spans: list[Span], token_ids: list[int]) -> Tensor:
        """Add the logprobs of the requests' prompt tokens; return [works, V], the logits after each work."""
        segments = _segments(works, range(len(works)), rows=[work.tokens for work in works])
        rope = self._model.rope([work.state.request for work in works], spans)
        logits = self._model.all_logits(token_ids, spans, segments, self.table.cache, rope=rope)
        following = _following(works, spans)
        if self._model.images is not None:
            following = self._model.images.as_placeholders(following)
        scores = scores_of(
            logits,
            following,
            likeliest=max(work.state.request.top_prompt_logprobs for work in works),
            with_entropies=any(work.state.request.prompt_entropies for work in works),
        )
        end = 0
        last = []
        for work in works:
            begin, end = end, end + work.tokens
            last.append(end - 1)
            work.state.take_prompt_scores(scores[begin:end])
            if not work.state.scores_prompt:
                self._scoring.discard(work.state)
        return logits[last]

    def _sample(self, works: Sequence[Work], logits: Tensor) -> None:
        drawn: list[RequestState] = []
        source: list[int] = []
        for index, work in enumerate(works):
            members = work.states
            for state in work.states:
                # Also a twin: its followers have its current tokens, not its future ones.
                if state.leads is not None:
                    members += self._share_prompt(state)
            drawn += members
            source += [index] * len(members)
        if not drawn:
            return
        # Twins and followers draw from the logits of the one that was computed.
        if len(drawn) > len(works):
            logits = logits.index_select(0, torch.from_numpy(np.array(source)).to(logits.device))
        tokens, logprobs = choose_tokens(
            logits,
            [state.request.temperature for state in drawn],
            [state.request.seed for state in drawn],
            [len(state.tokens) for state in drawn],
            {place: state.request for place, state in enumerate(drawn) if state.cut},
        )
        asking = [place for place, state in enumerate(drawn) if state.likeliest is not None]
        if asking:
            _note_likeliest([drawn[place] for place in asking], logits[asking])
        self._counters.sampled_tokens += len(drawn)
        # Requests that drew the same token at the same position still have equal tokens.
        paths: dict[tuple[Hashable, int], object] = {}
        for state, token, logprob in zip(drawn, tokens, logprobs, strict=True):
            state.take_token(token, logprob, paths.setdefault((state.path, token), object()))

    def _share_prompt(self, state: RequestState) -> list[RequestState]:
        assert state.slot is not None
        followers = list(state.followers)
        state.followers.clear()
        assert state.leads is not None
        del self._leaders[state.leads]
        state.leads = None
        self.table.remember_prompt(state.slot)
        if followers:
            slots = [follower.slot for follower in followers if follower.slot is not None]
            self.table.cache.copy(state.slot.index, [slot.index for slot in slots], state.slot.cached)
            for slot in slots:
                slot.cached = state.slot.cached
            for follower in followers:
                follower.waits_for = None
            self._counters.copied_tokens += state.slot.cached * len(followers)
        return followers


def _hand_to_twins(works: list[Work], table: SlotTable, turn: int) -> None:
    """Copy what was computed to requests at the same position; all of them have had their turn."""
    copies = [
        (work.slot.index, twin.slot.index, work.slot.cached, work.tokens)
        for work in works
        for twin in work.twins
        if twin.slot is not None
    ]
    if copies:
        table.cache.copy_spans(*zip(*copies, strict=True))
    for work in works:
        for state in work.states:
            state.place.cached += work.tokens
            state.turn = turn


def _following(works: list[Work], spans: list[Span]) -> list[int]:
    """Return what follows each token; behind a prompt's last one there is nothing yet, and any id will do."""
    following: list[int] = []
    for work, span in zip(works, spans, strict=True):
        following += [*work.state.tokens, 0][span.start + 1 : span.end + 1]
    return following


def _note_likeliest(states: Sequence[RequestState], logits: Tensor) -> None:
    """Add the most likely tokens of the requests by their logits ([requests, V]), for the next token."""
    requests = [state.request for state in states]
    found = likeliest_tokens(
        logits,
        [request.temperature for request in requests],
        [request.top_logprobs for request in requests],
        {place: state.request for place, state in enumerate(states) if state.cut},
    )
    for state, likeliest in zip(states, found, strict=True):
        assert state.likeliest is not None
        state.likeliest.append(likeliest)


def _in_a_line(error: Exception) -> str:
    # A compiled function's error contains its whole stack; the cause comes last.
    text = str(error)
    if "TorchScript" in text:
        return text.strip().splitlines()[-1]
    return f"{type(error).__name__}: {text}"


def _in_order(works: list[Work]) -> list[Work]:
    # Tokens of a policy are adjacent, for its adapter; within it rows of similar length are in slot order, so
    # attention can read them in place.
    order: dict[LoadedPolicy, int] = {}
    for work in works:
        order.setdefault(work.state.policy, len(order))
    return sorted(
        works,
        key=lambda work: (order[work.state.policy], (work.tokens - 1).bit_length(), work.slot.index),
    )


def _segments(
    works: list[Work], wanted: Sequence[int], rows: Sequence[int] | None = None
) -> list[AdapterSegment]:
    """Return which tokens and which rows of logits belong to which policy.

    Args:
        works: The works in the order of the packed row.
        wanted: Indices of the works whose logits are wanted.
        rows: Number of logits rows of each work in `wanted`; None is one each.
    """
    segments: list[AdapterSegment] = []
    tokens = logits = 0
    counts = dict(zip(wanted, [1] * len(wanted) if rows is None else rows, strict=True))
    for index, work in enumerate(works):
        begin = tokens, logits
        tokens, logits = tokens + work.tokens, logits + counts.get(index, 0)
        if segments and segments[-1].policy is work.state.policy:
            last = segments.pop()
            begin = last.tokens.start, last.rows.start
        segments.append(AdapterSegment(work.state.policy, slice(begin[0], tokens), slice(begin[1], logits)))
    return segments
