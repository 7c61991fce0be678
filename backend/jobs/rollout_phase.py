"""The rollout of a step: its episodes go on the board, and workers play them.

Everything between "the policy is published" and "all results are durable", including failures: workers that
vanish, silent clients, steps that must be played again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backend.episodes.episode_requests import group_requests, step_requests
from backend.episodes.league_book import LeagueBook
from backend.episodes.played import Played
from backend.episodes.recorded_actions import RecordedActions
from backend.errors import ClientSilentError
from backend.jobs.job_context import JobContext
from tinkergym.schema.episodes import EpisodeRequest, EpisodeResult
from tinkergym.schema.events import JobState, WarningEvent
from tinkergym.schema.ids import WorkerRef
from tinkergym.schema.jobs.played_spec import PlayedSpec

_LOOK_SECONDS = 0.5
"""How often a waiting job checks whether its client is alive; more often if its patience is short."""


_CLIENTS_NAMED = 5
"""In a warning."""


class RolloutPhase:
    """One job's use of its episode board. `begin` a step, then `finish` it."""

    def __init__(
        self,
        context: JobContext[PlayedSpec],
        league: LeagueBook,
        wanted: Callable[[Played], Sequence[int]],
    ) -> None:
        """Play a job's steps.

        Args:
            context: The job.
            league: Its loop updates it.
            wanted: Returns the numbers of groups to play in place of some of a step's.
        """
        self._wanted = wanted
        self._context = context
        self._league = league
        self._recorded = RecordedActions(context.all_files)
        self._waiting_for_client = False
        self._warned_of_clients = False

    def stored(self, step: int) -> Played | None:
        """Return the step's episodes in index order if an earlier attempt stored all of them."""
        context = self._context
        results = {result.episode_id: result for result in context.store.episodes(context.job_id, step)}
        played: list[tuple[EpisodeRequest, EpisodeResult]] = []
        requests = self._requests(step)
        while requests:
            if any(request.episode_id not in results for request in requests):
                return None
            played += [(request, results[request.episode_id]) for request in requests]
            requests = self._replacements(step, played)
        return played

    def begin(self, step: int) -> None:
        """Put the step's episodes on the board, except those that are already stored."""
        context = self._context
        if context.in_lockstep:
            # Lockstep batches depend on all episodes, so an unfinished step is played again completely.
            context.store.discard_episodes(context.lease, from_step=step)
        self._post(step, self._requests(step))

    def _requests(self, step: int) -> list[EpisodeRequest]:
        context = self._context
        known = self._league.known(step)
        return step_requests(context.job_id, context.spec, step, known, recorded=self._recorded)

    def _post(self, step: int, requests: list[EpisodeRequest]) -> None:
        """Put a round's episodes on the board, except those that an earlier attempt stored."""
        context = self._context
        stored = context.lease.attempt > 1 and not context.in_lockstep
        done = context.store.episodes(context.job_id, step) if stored else []
        context.boards.post(context.job_id, step, requests, done)

    def _replacements(self, step: int, played: Played) -> list[EpisodeRequest]:
        """Return the requests of the groups that replace others, if any."""
        context, wanted = self._context, self._wanted(played)
        return group_requests(context.job_id, context.spec, step, wanted, self._league.known(step))

    def finish(self, step: int) -> Played:
        """Wait for the step's results, and return them in index order.

        Raises:
            JobCancelledError: And other errors of `JobControl.check`.
            ClientSilentError: The client was silent for so long that the job gives up its place.
        """
        context = self._context
        seconds = min(_LOOK_SECONDS, context.spec.client_timeout_seconds / 4)
        # Earlier rounds of the step, if groups are replaced.
        earlier: list[tuple[EpisodeRequest, EpisodeResult]] = []
        while True:
            outcome = context.boards.wait(context.job_id, step, seconds)
            context.control.check()
            self.check_client()
            self._warn_of_crash(step)
            self._warn_of_clients(step)
            if outcome == "done":
                played = [*earlier, *context.boards.results(context.job_id, step)]
                requests = self._replacements(step, played)
                if not requests:
                    return played
                earlier = played
                self._post(step, requests)
            if outcome == "broken":
                earlier = []
                self._play_again(step)

    def _warn_of_crash(self, step: int) -> None:
        context = self._context
        if not context.boards.take_crash(context.job_id):
            return
        kept = (
            "the job has its own worker processes, which is slower"
            if context.in_lockstep
            else "each has its own process, which is slower, and restarts after longer pauses with each crash"
        )
        warning = WarningEvent(
            name="environment_crashed",
            message=f"a process died or hung while it ran this job's environments in step {step}; its "
            f"episodes are played again, and from now on {kept}",
            step=step,
        )
        context.store.append_event(context.lease, warning)

    def _warn_of_clients(self, step: int) -> None:
        """Warn once if several processes play the job's episodes; each follows the job's events."""
        context = self._context
        if self._warned_of_clients or context.spec.rollout == "server":
            return
        # Environments of one process may each have a worker.
        workers = context.boards.concurrent_workers(context.job_id)
        clients = sorted({WorkerRef.parse(name).process for name in workers})
        if len(clients) < 2:
            return
        self._warned_of_clients = True
        warning = WarningEvent(
            name="several_clients",
            message=f"{len(clients)} clients play this job and share its episodes (role, host and process): "
            f"{', '.join(clients[:_CLIENTS_NAMED])}. If that is not intended, end all but one; the job loses "
            "nothing",
            count=len(clients),
            step=step,
        )
        context.store.append_event(context.lease, warning)

    def _play_again(self, step: int) -> None:
        context = self._context
        warning = WarningEvent(
            name="lockstep_broken",
            message=f"the worker that played step {step} was lost; the whole step is played again",
            step=step,
        )
        context.store.append_event(context.lease, warning)
        self.begin(step)

    def check_client(self) -> None:
        """Set the job's state by whether its client was heard from.

        Raises:
            ClientSilentError: It was silent for so long that the job gives up its place.
        """
        context = self._context
        if context.spec.rollout == "server":
            return
        silence = context.boards.silent_seconds(context.job_id)
        if silence > context.client_place_seconds:
            raise ClientSilentError(
                f"waits for its client, which was silent for {context.client_place_seconds:g} s, so the "
                f"job gave up its place. Attach with Client.attach({context.job_id!r}), and with env=... "
                "if it was started with a class"
            )
        silent = silence > context.spec.client_timeout_seconds
        if silent == self._waiting_for_client:
            return
        self._waiting_for_client = silent
        if silent:
            # From the client's last sign on, not only from when its silence was noticed.
            context.clock.pause(silence)
        else:
            context.clock.resume()
        state = JobState.WAITING_FOR_CLIENT if silent else JobState.RUNNING
        if silent:
            reason = "the client's workers do not respond; attach to the job to continue"
        else:
            held = context.boards.held_seconds(context.job_id)
            reason = (
                f"waits up to {held:.0f} s for the leases of a client that stopped responding" if held else ""
            )
        context.store.set_state(context.lease, state, reason)
        context.boards.set_state(context.job_id, state)
