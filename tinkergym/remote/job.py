"""A job as its owner sees it: follow it, wait for it, cancel it, get its policy and its checkpoints."""

from __future__ import annotations

import json
import math
import re
import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from tinkergym.datasets.stored_episodes import stored_episodes
from tinkergym.display.html import card, curve
from tinkergym.display.pandas_tables import completion_rows, frame, with_metrics
from tinkergym.display.progress import update_words
from tinkergym.errors import (
    CheckpointCorruptError,
    InvalidRequestError,
    JobCancelledError,
    JobFailedError,
    NotFoundError,
    PolicyVersionGoneError,
    TinkerGymError,
    from_wire,
)
from tinkergym.evaluation.crossplay import crossplay
from tinkergym.evaluation.rescore import rescore
from tinkergym.registration.games import make_playable
from tinkergym.remote.api import Api
from tinkergym.remote.branching import branch_job
from tinkergym.remote.certificates import write_certificate
from tinkergym.remote.event_stream import follow
from tinkergym.remote.export import export_policy, of_one_policy
from tinkergym.remote.game_players import find_player, game_of, version_players
from tinkergym.remote.inference_jobs import results, write_results
from tinkergym.remote.overview import how_to_play_on, overview_of
from tinkergym.remote.policy import Policy
from tinkergym.remote.rescored_job import RescoredJob
from tinkergym.remote.user_files import writing_to
from tinkergym.remote.watching import watched
from tinkergym.reporting.callbacks import Callback
from tinkergym.reporting.reporter import Reporter
from tinkergym.reporting.trackers import callbacks_of
from tinkergym.schema.decoding import SeededOptions
from tinkergym.schema.evaluation import BranchRequest
from tinkergym.schema.events import (
    CheckpointView,
    EpisodeEvent,
    EvaluationEvent,
    Event,
    JobState,
    StateEvent,
    StepEvent,
    UpdateEvent,
    WarningEvent,
)
from tinkergym.schema.ids import chosen_version
from tinkergym.schema.jobs.spec import JobSpec
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.parsing import parse, update_request
from tinkergym.schema.served_names import Promotion, ServedName, name_fault
from tinkergym.schema.steering import settings_now
from tinkergym.schema.summaries import JobLabels

if TYPE_CHECKING:
    from tinkergym.datasets.stored_episodes import StoredEpisode, StoredEpisodes
    from tinkergym.display.run_overview import RunOverview
    from tinkergym.evaluation.crossplay import CrossPlay
    from tinkergym.evaluation.ratings import Ratings
    from tinkergym.evaluation.rescore import NewReward
    from tinkergym.remote.branching import Branches
    from tinkergym.remote.certificates import WrittenCertificate
    from tinkergym.remote.export import Exported
    from tinkergym.remote.policy import Policy
    from tinkergym.remote.rescored_job import RescoredJob
    from tinkergym.remote.rollout_thread import RolloutThread
    from tinkergym.rollout.local_environment import EnvSource
    from tinkergym.schema.episodes import EpisodeResult
    from tinkergym.tasks.source import TaskSource

_POINTS_OF_A_PAGE = 20_000
RESULT_PATIENCE_SECONDS = 300.0
"""How long `events` and `wait` try to reconnect to the service."""


class Job:
    """A training request that the service works on. It continues without this object."""

    def __init__(self, api: Api, view: JobView, *, rollout: RolloutThread | None = None) -> None:
        """Wrap a job. Users get one from `Client.train`, `Client.attach` or `Client.job`.

        Args:
            api: The service's API.
            view: The last known view of the job.
            rollout: The thread that plays its episodes, if they are played in this process.
        """
        self._api = api
        self._view = view
        self._rollout = rollout
        self._reporters: list[Reporter] = []
        self._followed = False
        """Whether `events` has yielded the last one."""
        self._warnings: dict[str, str] = {}
        """The first warning of each kind from `events`."""
        self._told: set[str] = set()
        """The kinds of warnings that `wait` has shown."""
        self._curves: dict[str, dict[int, float]] = {}
        """Mean reward by step, or the loss of jobs without one, for the events seen so far; of a game, one
        for each trained seat."""
        self._updates: dict[int, str] = {}
        """Changed settings by step."""

    def __repr__(self) -> str:
        return f"<Job {self.id} {self._view.state} at step {self._view.step}/{self.spec.steps}>"

    def _repr_html_(self) -> str:
        """Show the job in a notebook, with its curves so far."""
        view = self._view
        rows = {
            "state": f"{view.state}{f': {view.reason}' if view.reason else ''}",
            "step": f"{view.step} of {self.spec.steps}",
            "model": self.spec.model,
        }
        if self.spec.played:
            rows["environment"] = self.spec.played.played_in
        if view.error is not None:
            rows["error"] = f"{view.error.message} {view.error.hint}".strip()
        if self._updates:
            rows["changed"] = "; ".join(f"from step {step}: {self._updates[step]}" for step in self._updates)
        drawn = "".join(map(self._drawn, self._curves)) or self._stored_curves()
        return card(self.id, rows, picture=drawn)

    def _stored_curves(self) -> str:
        """Draw the curves of a job whose events were not read here."""
        with suppress(TinkerGymError):  # A notebook shows the rest without a service.
            found = [one for one in self._api.series(self.id).series if one.values]
            means = [one for one in found if one.name.endswith("reward_mean")]
            return "".join(
                curve(one.values, one.name) for one in means or found if means or one.name == "loss"
            )
        return ""

    def _drawn(self, agent: str) -> str:
        """Draw the curve of a seat."""
        values = self._curves[agent]
        steps = sorted(values)
        name = "mean reward" if self.spec.played else "loss"
        marks = {steps.index(step): words for step, words in self._updates.items() if step in values}
        whose = f"{name} of {agent}" if agent else name
        return curve([values[step] for step in steps], whose, marks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def id(self) -> str:
        """The id for `Client.attach` and the command line."""
        return self._view.job_id

    @property
    def spec(self) -> JobSpec:
        """The effective configuration, with defaults filled in."""
        return self._view.spec

    def view(self) -> JobView:
        """Fetch the job's current view from the service."""
        self._view = self._api.job(self.id)
        return self._view

    @property
    def state(self) -> JobState:
        """The current state."""
        return self.view().state

    def overview(self) -> RunOverview:
        """Return what `tinkergym jobs show` prints: settings, metrics, alarms, evaluations, what to type."""
        return overview_of(self._api, self.view())

    def page(self, path: str | Path) -> Path:
        """Write the run so far into a folder, as a page that a browser opens without a service.

        The folder has `index.html`, which runs no script and loads nothing, and `metrics.csv` with a row per
        train step.

        Returns:
            The page.

        Raises:
            InvalidRequestError: The folder cannot be written.
        """
        folder = Path(path)
        overview = overview_of(self._api, self.view(), points=_POINTS_OF_A_PAGE, with_episodes=True)
        with writing_to(folder / "index.html"):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "index.html").write_text(overview.page(), encoding="utf-8")
            (folder / "metrics.csv").write_text(overview.metrics_csv(), encoding="utf-8")
        return folder / "index.html"

    def events(self, *, after: int = 0, replay: bool = True) -> Iterator[Event]:
        """Yield all events, each once, from the beginning or after number `after`.

        Ends after the event with the final state. Does not raise if the job failed; `wait` does. A lost
        connection is resumed where it broke.

        Ctrl-C ends the iteration, not the job; a note below the traceback says how to attach again.

        Args:
            after: The `seq` of the last event already seen.
            replay: False skips events before this call, except the final state of an ended job.

        Raises:
            ServiceUnreachableError: The service did not respond for five minutes; the job itself may
                continue.
            TinkerGymError: Playing the episodes in this process failed.
        """
        events = follow(
            self._api.connection,
            self.id,
            after=after,
            patience_seconds=RESULT_PATIENCE_SECONDS,
            check=self._check_rollout,
        )
        before = -math.inf if replay else self.view().updated_at
        while True:
            try:
                event = next(events, None)
            except KeyboardInterrupt:
                # The traceback shows the waiting line, not the HTTP library's below it.
                raise self._interrupted() from None
            if event is None:
                return
            self._view = _after(self._view, event)
            self._note(event)
            is_final = isinstance(event.body, StateEvent) and event.body.state.final
            if is_final:
                self._followed = True
                self.close()
            if is_final or event.time > before:
                yield event

    def log(self) -> Iterator[Event]:
        """Yield the events so far, each once. `events` continues until the job ends."""
        last = self.view().last_seq
        for event in self.events() if last else ():
            yield event
            if event.seq >= last:
                return

    def steps(self) -> list[StepEvent]:
        """Return the finished train steps, each once."""
        last = self.view().step
        found: dict[int, StepEvent] = {}
        for event in self.events() if last else ():
            if isinstance(event.body, StepEvent):
                found[event.body.step] = event.body
                # For a running job the next events may take long.
                if event.body.step >= last and not self._view.state.final:
                    break
        return [found[number] for number in sorted(found)]

    def completions(self, step: int | None = None) -> list[dict[str, Any]]:
        """Return a table of a few completions: each turn of the episodes that the log shows, a row each.

        The log has the best and the worst completed episode of each step. Rows have step, episode_id, agent,
        seed, turn, prompt (what the environment showed), completion, return and stop_reason of the episode;
        `pandas.DataFrame(job.completions())` shows them.

        Args:
            step: Only this step; None returns all.
        """
        shown = [event.body for event in self.log() if isinstance(event.body, EpisodeEvent)]
        return [row for episode in shown if step in (None, episode.step) for row in completion_rows(episode)]

    def evaluations(self, name: str | None = None) -> list[EvaluationEvent]:
        """Return the finished evaluations, in order of their steps.

        Args:
            name: Only those with this name, see `EvaluateEvery.name`; None returns all.
        """
        return [done for done in self._api.evaluations(self.id) if name in (None, done.name)]

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each finished train step; metrics are columns.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        left_out = {"type", "metrics", "stop_reasons", "repeated"}
        return frame(with_metrics(step.model_dump(exclude=left_out), step.metrics) for step in self.steps())

    def wait(self, *, progress: bool | None = None, warn: bool = True) -> JobView:
        """Wait until the job ends and return its final view.

        Ctrl-C ends the waiting, not the job; a note below the traceback says how to attach again.

        Args:
            progress: Show progress, on stderr or in the notebook; None does so only on a terminal and in a
                notebook.
            warn: Turn the first of each kind of the job's warnings into a Python warning, including earlier
                ones, and say what to do if the job waits for a client or is paused.

        Raises:
            JobCancelledError: It was cancelled.
            JobFailedError: It failed. The message has the service's reason and what to do.
        """
        view = self.view()
        if not (view.state.final and self._followed):
            try:
                with watched(self, progress, warnings=not warn) as show:
                    for event in self.events():
                        show(event)
                        for news in self._news() if warn else ():
                            warnings.warn(news, stacklevel=2)
            except KeyboardInterrupt:
                raise self._interrupted() from None
            view = self._final_view()
        for news in self._news() if warn else ():
            warnings.warn(news, stacklevel=2)
        self.close()
        return raise_for(view)

    def report_to(self, *trackers: str | Callback) -> Self:
        """Report every train step to trackers, in the background; see `docs/guides/tracking.md`.

        A tracker that already has steps of this job only gets the others. If this process ends early, the
        next `report_to` of the job continues.

        Args:
            trackers: "csv", "jsonl", "mlflow", "tensorboard", "trackio", "wandb", or your own callbacks.

        Raises:
            InvalidRequestError: There is no such tracker.
            MissingExtraError: A tracker's package is not installed.
        """
        callbacks = callbacks_of(trackers)
        if callbacks:
            events = partial(follow, self._api.connection, self.id, patience_seconds=RESULT_PATIENCE_SECONDS)
            self._reporters.append(Reporter(self._view, lambda check: events(check=check), callbacks))
        return self

    def cancel(self) -> JobView:
        """Ask the job to end. Returns at once; `wait` and `events` show when it has ended."""
        self._view = self._api.cancel(self.id)
        return self._view

    def pause(self) -> JobView:
        """Pause the job: it finishes a step that is learning, saves a checkpoint and gives up its place.

        Returns at once; `wait` and `events` show when it has paused. It stays `paused` until `resume`, across
        restarts, and then continues as if it had not been paused. Unfinished episodes are played again.

        Raises:
            ConflictError: It has ended.
        """
        self._view = self._api.pause(self.id)
        return self._view

    def resume(self) -> JobView:
        """Queue a paused job again. A job that is not paused is unchanged.

        Raises:
            ConflictError: It has ended, or its budget is used up: raise it with `update` first.
        """
        self._view = self._api.resume(self.id)
        return self._view

    def update(self, **settings: Any) -> JobView:
        """Change settings while the job trains: from the next train step on, the budget at once.

        The job's log has the first step they apply to. A job that is killed and resumed repeats its steps
        with the settings they had.

        Args:
            settings: `budget`, `learning_rate`, `value_learning_rate`, `entropy_coefficient`,
                `kl_coefficient`, `max_grad_norm`, `weight_decay`, `updates`, if this kind of job has them. A
                learning rate is the schedule's peak; the schedule itself continues. For one policy of a
                game: `agents={"black": {"learning_rate": 1e-4}}`.

        Raises:
            InvalidRequestError: A setting cannot be changed while a job trains, or its value is invalid.
            ConflictError: It has ended.
        """
        self._view = self._api.update(self.id, update_request(settings))
        return self._view

    def promote(
        self, version: int | str = "latest", *, name: str = "", agent: str = "", share: float = 1.0
    ) -> ServedName:
        """Let a name of the OpenAI API serve a version of the job's policy, from the next request on.

        Args:
            version: 40, or "best", "latest" or "step:40"; it needs a checkpoint, which is then kept.
            name: What requests have as `model`; empty is the job's name.
            agent: Whose policy, if the job trains several.
            share: The share of the requests. Below 1, the others stay with the version that the name serves
                now, and requests of one `user` all get the same one.

        Raises:
            NotFoundError: The version is not stored; the hint lists those that are.
            InvalidRequestError: The name is empty, invalid or that of a model, or a share has no rest.
        """
        chosen = name or self.spec.name
        if fault := name_fault(chosen):
            fault = replace(fault, hint=f"give it with name=...: {fault.hint}")
            raise fault.error()
        reference = chosen_version(self.id, agent, version)
        return self._api.promote(chosen, parse(Promotion, {"policy": reference, "share": share}))

    def label(
        self,
        *,
        name: str | None = None,
        tags: Sequence[str] | None = None,
        note: str | None = None,
        archived: bool | None = None,
    ) -> JobLabels:
        """Change what lists show of the job, in any state; return all labels. None keeps a label.

        Args:
            name: Replaces the name that it was submitted with.
            tags: All tags; `client.jobs(tag=...)` finds them.
            note: Any text.
            archived: Whether lists leave the job out.

        Raises:
            InvalidRequestError: A text is too long, or there are too many tags.
        """
        given = {"name": name, "tags": tags, "note": note, "archived": archived}
        chosen = {key: value for key, value in given.items() if value is not None}
        before = self._api.labels(self.id)
        if not chosen:
            return before
        return self._api.set_labels(self.id, parse(JobLabels, before.model_dump() | chosen))

    def delete(self) -> int:
        """Delete an ended job with its events, its checkpoints and its policy.

        Returns:
            Bytes freed on the service's disk.

        Raises:
            ConflictError: It has not ended, or an unfinished job or a name uses its policy.
            NotFoundError: It was deleted before.
        """
        return self._api.delete(self.id).bytes

    def policy(
        self,
        which: int | str | None = None,
        /,
        *,
        version: int | None = None,
        agent: str = "",
        **decoding: Unpack[SeededOptions],
    ) -> Policy:
        """Return the job's policy.

        Args:
            which: Short for `agent` if it is text, as in `job.policy("black")`, otherwise for `version`.
            version: None uses the newest for every action, also while the job trains; 0 is the model before
                training. Other versions need a checkpoint.
            agent: Whose policy, if the job trains the agents of a game.
            **decoding: Fields of `Decoding`: temperature and max_turn_tokens, which are the job's if left
                out, top_p, top_k, structured, stop, and seed, which makes its actions repeatable.

        Raises:
            InvalidRequestError: A sampling setting is out of range, `version` is not a number, the job has no
                such agent or several policies of which none is named, or `which` is something else than is
                given by its name.
            PolicyVersionGoneError: `version` is neither 0 nor the newest and has no checkpoint.
        """
        agent, version = _agent_and_version(which, agent, version)
        if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
            raise InvalidRequestError(
                f"must be a version number, not {version!r}",
                hint="leave it out for the newest; 0 is the model before training",
                field="version",
            )
        # Checkpoints of several policies are not listed here; the service knows which are stored.
        if not agent and version and version != (newest := self.view().policy_version):
            kept = sorted({checkpoint.policy_version for checkpoint in self.checkpoints(agent=agent)})
            if version not in kept:
                there = ", ".join(map(str, kept)) or "none"
                raise PolicyVersionGoneError(
                    f"version {version} of {self.id} has no checkpoint, and is neither the newest version "
                    f"({newest}) nor 0, the model before training",
                    hint=f"versions with a checkpoint: {there}; see checkpoint_every and keep_checkpoints",
                    field="version",
                )
        return Policy.of_job(self._api, self._view, version=version, agent=agent, **decoding)

    def crossplay(
        self,
        versions: Sequence[int] | None = None,
        *,
        against: Sequence[str] = ("random",),
        others: Sequence[str] = (),
        game: str | None = None,
        pairs: int = 50,
        seed: int = 0,
        temperature: float | None = None,
        progress: bool | None = None,
    ) -> CrossPlay:
        """Let versions of the job's policies play each other and others in mirrored games; see `ratings.md`.

        Args:
            versions: Versions of each policy; None means the first, the newest, and up to three with a
                checkpoint.
            against: Further players: players of the game, such as `random`; `job-ID@40`; models.
            others: In a game for three or more, players as in `against` for the seats that neither of two
                policies can take, each the first that can. Without one, the first of `against` that can.
            game: The game, if the job did not train in it; None uses the job's.
            pairs: Seeds per matchup, each played once per assignment of seats.
            seed: The first seed.
            temperature: Sampling temperature of the policies; None is as in training.
            progress: Show on stderr how many games have ended; None does so only on a terminal.

        Raises:
            InvalidRequestError: The job's environment is not a game, or a player is unknown.
            NotFoundError: A version is not stored.
        """
        view = self.view()
        reference = game_of(view, game)
        players = version_players(self._api, view, versions=versions, temperature=temperature)
        table = make_playable(reference)
        further, fill = (
            [find_player(self._api, name, table, temperature=temperature) for name in names]
            for names in (against, others)
        )
        table.close()
        return crossplay(
            [*players, *further], reference, pairs=pairs, seed=seed, others=fill, progress=progress
        )

    def ratings(self, *, anchor: str | None = None, **how: Any) -> Ratings:
        """Rate versions of the job's policies. Plays new games; `how` is as for `crossplay`.

        Args:
            anchor: The player with rating 0; None uses `random` if it plays, else the mean.
            how: See `crossplay`.
        """
        return self.crossplay(**how).ratings(anchor=anchor)

    def checkpoints(self, *, agent: str = "") -> list[CheckpointView]:
        """List the stored checkpoints, oldest first.

        Args:
            agent: Only list this agent's policy; empty lists all policies of the job.
        """
        return [one for one in self._api.checkpoints(self.id) if agent in ("", one.agent)]

    def download(self, step: int | None = None, path: str | Path = ".", *, agent: str = "") -> Path:
        """Download a checkpoint and verify every file against the SHA-256 in its manifest.

        Args:
            step: The checkpoint's step; None is the newest.
            path: A folder, created if missing; the files are written to `path/<job id>/step-000010/`, or to
                `path/<job id>/<agent>/step-000010/` if policies belong to agents.
            agent: The policy's agent, if the job trains several.

        Returns:
            The folder with the files.

        Raises:
            NotFoundError: There is no such checkpoint.
            InvalidRequestError: `path` cannot be written.
            CheckpointCorruptError: A downloaded file has a wrong hash; it is deleted.
        """
        checkpoint = self._checkpoint(step, agent)
        folder = Path(path) / _file_name(self.id)
        folder = (folder / _file_name(checkpoint.agent) if checkpoint.agent else folder) / (
            f"step-{checkpoint.step:06d}"
        )
        with writing_to(folder):
            folder.mkdir(parents=True, exist_ok=True)
        # The manifest has the hashes of the other files.
        names = sorted(checkpoint.files, key=lambda name: name != "manifest.json")
        expected: dict[str, str] = {}
        for name in names:
            target = folder / _file_name(name)
            digest = self._api.download(self.id, checkpoint.step, name, target, agent=checkpoint.agent)
            if name == "manifest.json":
                expected = _manifest_hashes(target)
            elif expected.get(name, digest) != digest:
                target.unlink()
                raise CheckpointCorruptError(
                    f"{name} of checkpoint {checkpoint.step} is damaged: its SHA-256 is {digest}, "
                    f"not {expected[name]}",
                    hint="download it again; if that fails too, the file on the service's disk is broken",
                )
        return folder

    def export(
        self,
        path: str | Path,
        *,
        version: int | None = None,
        merge: bool = False,
        base: str | None = None,
        agent: str = "",
    ) -> Exported:
        """Write the policy to a folder that transformers and PEFT load; see `tinkergym export`.

        Args:
            path: The folder, which must not exist yet; it appears when it is complete.
            version: A version with a checkpoint; None means the newest.
            merge: Write a whole model instead of an adapter; needs the extra `backend` here.
            base: For `merge`: where the base model is, if it is not found by itself.
            agent: The policy's agent, if the job trains several.

        Raises:
            ConflictError: The folder exists, or `base` is not the model that was trained.
            InvalidRequestError: `path` cannot be written.
            NotFoundError: There is no such checkpoint.
            CheckpointCorruptError: A downloaded file has a wrong hash.
            MissingExtraError: `merge` without torch, transformers and PEFT.
        """
        return export_policy(
            self._api, self.id, Path(path), version=version, merge=merge, base=base, agent=agent
        )

    def results(self, *, token_ids: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the results of an inference job so far: the lines that `Policy.generate` would write.

        Args:
            token_ids: Whether they have the sampled token ids.

        Raises:
            InvalidRequestError: It is a job of another kind.
        """
        return results(self._api, self.view(), token_ids=token_ids)

    def write_results(self, out: str | Path, *, token_ids: bool = False) -> int:
        """Write the results of an inference job so far to a file, or those that it does not have yet.

        Args:
            out: JSON lines, or Parquet if it ends in `.parquet`, which is made once the job has completed.
            token_ids: Whether they have the sampled token ids.

        Returns:
            How many lines there are.

        Raises:
            InvalidRequestError: It is a job of another kind, or the file cannot be written.
            ConflictError: The file has other results.
            StorageFullError: The disk is full. What was written is kept, and the next call continues.
        """
        return write_results(self._api, self.view(), out, token_ids=token_ids).done

    def episodes(self, *, first_step: int = 0, last_step: int | None = None) -> StoredEpisodes:
        """Fetch the stored episodes: to read, to filter, and to train on again.

        Args:
            first_step: Only this train step and later ones.
            last_step: Only this step and earlier ones.

        Raises:
            InvalidRequestError: The job does not play episodes.
        """
        played = self.spec.played
        if played is None:
            raise InvalidRequestError(
                f"{self.id} is of kind {self.spec.kind!r}, which does not play episodes",
                hint="use a job from client.train or client.distill",
            )
        records = self._api.stored_episodes(self.id, first_step=first_step, last_step=last_step)
        return stored_episodes(played, records, origin=self.id)

    def stored_episode(self, episode_id: str) -> EpisodeResult:
        """Fetch the record of one stored episode, with all of its seats.

        Raises:
            NotFoundError: It is not stored.
        """
        return self._api.episode(self.id, episode_id).episode

    def rescore(
        self,
        reward: NewReward,
        *,
        tasks: TaskSource | None = None,
        first_step: int = 0,
        last_step: int | None = None,
    ) -> RescoredJob[Job]:
        """Compute another reward for the stored episodes; see `docs/guides/rewards.md`.

        Args:
            reward: A `Rubric`, a `SingleTurnEnv` class, or a function from a stored episode to a number. They
                can use only the transcript and the task's row.
            tasks: The source of the rows whose fields a rubric's terms name.
            first_step: Only episodes of this train step and later ones.
            last_step: Only this step and earlier ones.

        Raises:
            InvalidRequestError: The reward depends on state that is not stored, or the job does not play
                episodes.
        """
        episodes = self.episodes(first_step=first_step, last_step=last_step)
        played = self.spec.played
        assert played, "`episodes` refuses other jobs"
        found = rescore(played, episodes, reward, tasks=tasks, origin=self.id)

        def start(spec: JobSpec) -> Job:
            return Job(self._api, self._api.create_job(spec, idempotency_key=uuid.uuid4().hex))

        return RescoredJob(found, self._api, self.view(), start)

    def branch(
        self,
        episode: str | StoredEpisode,
        turn: int,
        *,
        policy: str | Policy | None = None,
        n: int = 4,
        agent: str = "",
        actions: Sequence[str] = (),
        temperature: float | None = None,
        seed: int = 0,
        env: EnvSource | None = None,
    ) -> Branches:
        """Continue a stored episode differently from one of its turns, with the same seed and state.

        The environment is reset with the episode's seed and gets its actions before `turn`; what it shows is
        compared with the record, token by token. The service does this for jobs whose episodes it plays,
        unless `env` is given; otherwise this process does. Nothing is stored or trained on.

        Args:
            episode: Its id, such as `job-ID:3:17`, or one of `episodes`.
            turn: The first turn to play anew, counted from 1.
            policy: Who answers at the seat from there: `job-ID@40`, a model, or a policy. None is the newest
                version of the policy that the job trains there.
            n: How many continuations. With 0 the episode ends with what the environment shows after
                `actions`.
            agent: The seat, in an episode with several.
            actions: Answers of your own for the first turns; the policy continues after them.
            temperature: Sampling temperature of the seat; None is as in training.
            seed: Another one gives other continuations.
            env: The job's environment, if it is a class or function of yours.

        Raises:
            NotReplayableError: The environment cannot be replayed; the message says why.
            InvalidRequestError: There is no such turn or seat, or the policy has another tokenizer.
            NotFoundError: The episode is not stored.
        """
        given = episode if isinstance(episode, str) else episode.episode_id
        if isinstance(policy, Policy):
            policy = policy.reference
        settings = {
            "turn": turn,
            "agent": agent or ("" if isinstance(episode, str) else episode.agent),
            "policy": policy or "",
            "actions": list(actions),
            "n": n,
            "temperature": temperature,
            "seed": seed,
        }
        return branch_job(self._api, self.view(), given, parse(BranchRequest, settings), env)

    def certificate(self, path: str | Path = ".", *, bundle: bool = False) -> WrittenCertificate:
        """Write the certificate of the run, which a colleague can check; see `docs/guides/certificates.md`.

        Args:
            path: A folder, created if it is missing, for `JOB_ID.certificate.json` and
                `JOB_ID.certificate.html`, or `JOB_ID.bundle.tar`.
            bundle: Add the newest adapter, the stored episodes and all events, in one file.

        Raises:
            InvalidRequestError: `path` cannot be written.
        """
        return write_certificate(self._api, self.id, Path(path), bundle=bundle)

    def close(self) -> None:
        """Stop playing episodes and reporting in this process.

        The job continues, and waits for a client if it needs one. If the job has ended, trackers first
        receive everything.
        """
        if self._rollout is not None:
            self._rollout.stop()
        for reporter in self._reporters:
            reporter.close(ended=self._view.state.final)

    def _checkpoint(self, step: int | None, agent: str = "") -> CheckpointView:
        found = of_one_policy(self.checkpoints(agent=agent), self.id)
        chosen = [c for c in found if step is None or c.step == step]
        if not chosen:
            there = ", ".join(str(c.step) for c in found) or "none"
            raise NotFoundError(
                f"{self.id} has no checkpoint" + ("" if step is None else f" of step {step}"),
                hint=f"there: {there}; older ones are removed, see keep_checkpoints",
                field="step",
            )
        return chosen[-1]

    def _interrupted(self) -> KeyboardInterrupt:
        goes_on = "goes on" if self._rollout is None else "waits for a client to play its episodes"
        if self._view.state is JobState.PAUSED:
            goes_on = f"stays paused until `tinkergym jobs resume {self.id}`"
        seen = f"`tinkergym jobs attach {self.id}` shows it"
        if self._rollout is not None:
            seen = f"To play on: {how_to_play_on(self._view)}"
        interrupt = KeyboardInterrupt()
        interrupt.add_note(f"The job {goes_on}. {seen}; `tinkergym jobs cancel {self.id}` ends it.")
        return interrupt

    def _check_rollout(self) -> None:
        if self._rollout is not None:
            self._rollout.raise_if_broken()

    def _note(self, event: Event) -> None:
        """Keep warnings to show while waiting, each kind once, and the curve."""
        body = event.body
        if isinstance(body, StepEvent):
            values = body.reward_means() if self.spec.played else body.losses()
            for agent, value in values.items():
                self._curves.setdefault(agent, {})[body.step] = value
        if isinstance(body, UpdateEvent) and body.from_step is not None:
            known = self._updates.get(body.from_step)
            words = update_words(body)
            self._updates[body.from_step] = words if known in (None, words) else f"{known}, {words}"
        if isinstance(body, WarningEvent):
            times = f", {body.count} times" if body.count > 1 else ""
            text = f"{self.id} at step {body.step}: {body.name}{times}: {body.message}"
            self._warnings.setdefault(body.name, text)

    def _news(self) -> Iterator[str]:
        """Yield the messages that `wait` has not shown yet."""
        for name, text in self._warnings.items():
            if name not in self._told:
                self._told.add(name)
                yield text
        # Check the view, not the event: another client may be playing by now.
        state = self._view.state
        played_here = self._rollout is not None and self._rollout.is_playing
        if state is JobState.PAUSED and state not in self._told:
            self._told.add(state)
            yield f"{self.id} is paused: {self._view.reason}"
        elif state is not JobState.PAUSED:
            self._told.discard(JobState.PAUSED)  # The next pause is shown again.
        if state is JobState.WAITING_FOR_CLIENT and not played_here and state not in self._told:
            self._told.add(state)
            yield (
                f"{self.id} waits for a client to play its episodes; continue with: "
                f"{how_to_play_on(self._view)}"
            )

    def _final_view(self) -> JobView:
        """Fetch the state that an event announced."""
        view = self.view()
        while not view.state.final:
            time.sleep(0.05)
            view = self.view()
        return view


def raise_for(view: JobView) -> JobView:
    """Return a job that completed; raise an error for any other end.

    Raises:
        JobCancelledError: It was cancelled.
        JobFailedError: It failed.
    """
    if view.state is JobState.CANCELLED:
        raise JobCancelledError(
            f"{view.job_id} was cancelled at step {view.step} of {view.spec.steps}",
            hint="its checkpoints are still stored",
        )
    if view.state is JobState.FAILED:
        cause: TinkerGymError | None = from_wire(view.error.model_dump()) if view.error else None
        raise JobFailedError(
            f"{view.job_id} failed at step {view.step} of {view.spec.steps}: "
            f"{cause.message if cause else view.reason or 'the service did not give a reason'}",
            hint=cause.hint if cause else "",
            field=cause.field if cause else "",
        ) from cause
    return view


def _agent_and_version(which: int | str | None, agent: str, version: int | None) -> tuple[str, int | None]:
    """Return whose policy, and which version of it, `Job.policy` was asked for."""
    named: int | str | None = agent or None if isinstance(which, str) else version
    if which is not None and named is not None:
        name = "agent" if isinstance(which, str) else "version"
        raise InvalidRequestError(
            f"the {name} is given twice, as {which!r} and as {name}={named!r}", hint="give one", field=name
        )
    return (which, version) if isinstance(which, str) else (agent, version if which is None else which)


def _after(view: JobView, event: Event) -> JobView:
    """Return a job's view after an event. In a replay, an event older than the view changes nothing.

    The service dates a job by its last event, so both times come from one clock.
    """
    body = event.body
    if event.time < view.updated_at:
        return view
    changes: dict[str, object]
    if isinstance(body, StateEvent):
        changes = {"state": body.state, "reason": body.reason, "error": body.error, "attempt": body.attempt}
    elif isinstance(body, StepEvent):
        changes = {"step": body.step, "policy_version": body.policy_version}
    elif isinstance(body, UpdateEvent):
        changes = {"spec": settings_now(view.spec, [body])}
    else:
        return view
    return view.model_copy(update={**changes, "updated_at": event.time})


def _manifest_hashes(manifest: Path) -> dict[str, str]:
    try:
        files = json.loads(manifest.read_text(encoding="utf-8"))["files"]
        return {str(name): str(entry["sha256"]) for name, entry in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointCorruptError(
            f"the checkpoint's manifest cannot be read: {error}", hint="download another checkpoint"
        ) from error


def _file_name(name: str) -> str:
    """Never use a path from the service: its names stay inside the requested folder."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".") or "_"
