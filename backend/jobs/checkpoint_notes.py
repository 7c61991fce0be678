"""What later steps must know of earlier ones, besides the weights: kept in every checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from backend.episodes.league_book import LeagueBook
from backend.episodes.played import Played
from backend.episodes.recorded_actions import record
from backend.jobs.all_policies import AllPolicies
from backend.jobs.collapse_watch import CollapseWatch, command_from
from backend.jobs.job_context import JobContext
from tinkergym.schema.jobs.played_spec import PlayedSpec

_MEMORY = "baselines"
"""Name of the algorithms' memory in the notes of a checkpoint."""


class _Noting(Protocol):
    """State that changes with the episodes of a step, and is restored from a checkpoint."""

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        ...


class CheckpointNotes:
    """Results of leagues, the collapse guard, and the algorithms' memory, as plain numbers.

    The notes are those of the last finished step, so a job that resumes from any checkpoint draws the same
    opponents and computes the same advantages. Versions that they name stay stored until a newer checkpoint
    no longer names them.
    """

    def __init__(self, context: JobContext[PlayedSpec], policies: AllPolicies) -> None:
        self._context, self._policies = context, policies
        self.league = LeagueBook(context.spec)
        guard = context.spec.guard
        self._watch = None if guard is None else CollapseWatch(context.spec, guard)
        self._kept: dict[str, set[int]] = {}
        """Versions whose checkpoints are kept, by reason."""

    def restore(self, done_step: int) -> None:
        """Restore the notes of the checkpoint that the job resumes from."""
        notes = self._policies.notes
        for name, part in self._parts.items():
            state = notes.get(name)
            if isinstance(state, dict):
                part.restore(state)
        memory = notes.get(_MEMORY)
        self._context.memory.update(memory if isinstance(memory, dict) else {})
        self.keep_versions(done_step, free=True)

    def take(self, step: int, played: Played, *, is_saved: bool) -> None:
        """Note the games of a finished step, whose version gets a checkpoint or not."""
        context, spec = self._context, self._context.spec
        if spec.plays_game and spec.keep_episodes != 0:
            record(context.files, step, played, epoch=context.lease.epoch)
        if spec.leagues:
            self.league.add(step, played)
        if self._watch is not None:
            warnings = self._watch.record_step(
                step,
                played,
                is_saved=is_saved,
                come_back=lambda version: command_from(spec, context.job_id, version),
            )
            context.store.append_events(context.lease, [*warnings])
        memory = {_MEMORY: dict(context.memory)} if context.memory else {}
        self._policies.note({**memory, **{name: part.state() for name, part in self._parts.items()}})
        self.keep_versions(step, free=False)

    def keep_versions(self, done_step: int, *, free: bool) -> None:
        """Keep the versions used as opponents, and the last good one; `free` those kept until now."""
        wanted: dict[str, set[int]] = {}
        if self._context.spec.leagues:
            wanted["league"] = self.league.kept(done_step)
        if self._watch is not None:
            # The newest is kept anyway, and then counts as one of the newest, not in addition.
            wanted["guard"] = {self._watch.good_step} - {done_step}
        for why, steps in wanted.items():
            kept = steps if free else steps | self._kept.get(why, set())
            self._policies.keep_steps(kept, why=why)
            self._kept[why] = kept

    @property
    def _parts(self) -> Mapping[str, _Noting]:
        """What the job uses, by name."""
        parts: dict[str, _Noting] = {}
        if self._context.spec.leagues:
            parts["league"] = self.league
        if self._watch is not None:
            parts["guard"] = self._watch
        return parts
