"""A job as its owner sees it: follow it, wait for it, cancel it, take its policy and its checkpoints."""

from __future__ import annotations

import json
import math
import re
import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tinkergym.display.html import card, curve
from tinkergym.display.progress import update_words
from tinkergym.display.tables import completion_rows, frame, with_metrics
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
from tinkergym.remote.api import Api
from tinkergym.remote.events import follow
from tinkergym.remote.target_files import writing_to
from tinkergym.remote.watching import watched
from tinkergym.reporting.callbacks import Callback
from tinkergym.reporting.reporter import Reporter
from tinkergym.reporting.trackers import callbacks_of
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
from tinkergym.schema.job_spec import PlayedSpec
from tinkergym.schema.jobs import AnyJobSpec, JobView
from tinkergym.schema.parsing import update_request
from tinkergym.schema.steering import settings_now
from tinkergym.schema.structured import Structured

if TYPE_CHECKING:
    from tinkergym.datasets.stored_episodes import StoredEpisodes
    from tinkergym.evaluation.crossplay import CrossPlay
    from tinkergym.evaluation.exploitability import Exploitability
    from tinkergym.evaluation.ratings import Ratings
    from tinkergym.evaluation.rescore import NewReward
    from tinkergym.remote.certificates import WrittenCertificate
    from tinkergym.remote.export import Exported
    from tinkergym.remote.policy import Policy
    from tinkergym.remote.rescored_job import RescoredJob
    from tinkergym.remote.rollout_thread import RolloutThread
    from tinkergym.tasks.source import TaskSource

RESULT_PATIENCE_SECONDS = 300.0
"""How long `events` and `wait` look for a service that went away."""


class Job:
    """A training request that the service works on; it goes on without this object."""

    def __init__(self, api: Api, view: JobView, *, rollout: RolloutThread | None = None) -> None:
        """Hold a job; users get one from `Client.train`, `Client.attach` or `Client.job`.

        Args:
            api: To the service.
            view: The job as it was last seen.
            rollout: The thread that plays its episodes in this process, if they are played here.
        """
        self._api = api
        self._view = view
        self._rollout = rollout
        self._reporters: list[Reporter] = []
        self._followed = False
        """Whether `events` has yielded the last one."""
        self._warnings: dict[str, str] = {}
        """The first of each kind that `events` met."""
        self._told: set[str] = set()
        """The kinds that `wait` passed on."""
        self._curve: dict[int, float] = {}
        """By step the mean reward, or the loss of jobs that have none; as far as `events` has come."""
        self._updates: dict[int, str] = {}
        """By step which settings were changed for it."""

    def __repr__(self) -> str:
        return f"<Job {self.id} {self._view.state} at step {self._view.step}/{self.spec.steps}>"

    def _repr_html_(self) -> str:
        """Show the job in a notebook, with its curve as far as it is known here."""
        view = self._view
        rows = {
            "state": f"{view.state}{f': {view.reason}' if view.reason else ''}",
            "step": f"{view.step} of {self.spec.steps}",
            "model": self.spec.model,
        }
        if isinstance(self.spec, PlayedSpec):
            rows["environment"] = self.spec.played_in
        if self._updates:
            rows["changed"] = "; ".join(f"from step {step}: {self._updates[step]}" for step in self._updates)
        steps = sorted(self._curve)
        name = "mean reward" if isinstance(self.spec, PlayedSpec) else "loss"
        marks = {steps.index(step): words for step, words in self._updates.items() if step in self._curve}
        return card(self.id, rows, picture=curve([self._curve[step] for step in steps], name, marks))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def id(self) -> str:
        """The name by which `Client.attach` and the command line find it again."""
        return self._view.job_id

    @property
    def spec(self) -> AnyJobSpec:
        """The effective configuration, defaults filled in."""
        return self._view.spec

    def view(self) -> JobView:
        """Ask the service how the job is now."""
        self._view = self._api.job(self.id)
        return self._view

    @property
    def state(self) -> JobState:
        """The state it is in now."""
        return self.view().state

    def events(self, *, after: int = 0, replay: bool = True) -> Iterator[Event]:
        """Yield everything that happens, each event once, from the beginning or after number `after`.

        Ends after the event that carries the final state; does not raise when the job failed, `wait` does. A
        lost connection is taken up again where it broke.

        Ctrl-C ends the iteration, not the job; the note below the traceback says how to see it again.

        Args:
            after: The `seq` of the last event already seen.
            replay: False leaves out what happened before this call, except the final state of an ended job.

        Raises:
            ServiceUnreachableError: the service stayed away for five minutes; the job itself may go on.
            TinkerGymError: the episodes were played in this process and that broke.
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
                # The traceback shows the line that waited, not the HTTP library's below it.
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
        """Yield what has happened until now, each event once; `events` goes on until the job ends."""
        last = self.view().last_seq
        for event in self.events() if last else ():
            yield event
            if event.seq >= last:
                return

    def steps(self) -> list[StepEvent]:
        """Return the train steps that are done, each once."""
        last = self.view().step
        found: dict[int, StepEvent] = {}
        for event in self.events() if last else ():
            if isinstance(event.body, StepEvent):
                found[event.body.step] = event.body
                # Of a job that goes on, further events may be long in coming.
                if event.body.step >= last and not self._view.state.final:
                    break
        return [found[number] for number in sorted(found)]

    def completions(self, step: int | None = None) -> list[dict[str, Any]]:
        """Return a table of a few completions: each turn of the episodes that the log shows, a row each.

        Those are the best and the worst completed episode of each step. Rows have step, episode_id, agent,
        seed, turn, prompt (what the environment showed), completion, return and stop_reason of the episode;
        `pandas.DataFrame(job.completions())` shows them.

        Args:
            step: Only those of this step; None returns all.
        """
        shown = [event.body for event in self.log() if isinstance(event.body, EpisodeEvent)]
        return [row for episode in shown if step in (None, episode.step) for row in completion_rows(episode)]

    def evaluations(self, name: str | None = None) -> list[EvaluationEvent]:
        """Return the evaluations on the way that are done, in order of their steps.

        Args:
            name: Only those of this name, see `EvaluateEvery.name`; None returns all.
        """
        return [done for done in self._api.evaluations(self.id) if name in (None, done.name)]

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each train step that is done; metrics are columns.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        left_out = {"type", "metrics", "stop_reasons"}
        return frame(with_metrics(step.model_dump(exclude=left_out), step.metrics) for step in self.steps())

    def wait(self, *, progress: bool | None = None, warn: bool = True) -> JobView:
        """Wait until the job ends and return how it ended.

        Ctrl-C ends the waiting, not the job; the note below the traceback says how to see it again.

        Args:
            progress: Show how it goes, on the error stream or in the notebook; None does so on a terminal and
                in a notebook only.
            warn: Pass the first of each kind of the job's warnings on as Python's, also of those before now,
                and say what to type when the job waits for a client or is paused.

        Raises:
            JobCancelledError: it was cancelled.
            JobFailedError: it failed; the text carries the service's reason and what to do.
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
        """Tell trackers of every train step, in the background; see `docs/guides/tracking.md`.

        A tracker that has steps of this job from before gets the others only. What it has not been told when
        this process ends, the next `report_to` of the job tells it.

        Args:
            trackers: "csv", "jsonl", "mlflow", "tensorboard", "trackio", "wandb", or callbacks of your own.

        Raises:
            InvalidRequestError: there is no such tracker.
            MissingExtraError: a tracker's package is not installed.
        """
        callbacks = callbacks_of(trackers)
        if callbacks:
            events = partial(follow, self._api.connection, self.id, patience_seconds=RESULT_PATIENCE_SECONDS)
            self._reporters.append(Reporter(self._view, lambda check: events(check=check), callbacks))
        return self

    def cancel(self) -> JobView:
        """Ask the job to end. Returns at once; `wait` or `events` see it end."""
        self._view = self._api.cancel(self.id)
        return self._view

    def pause(self) -> JobView:
        """Have the job pause: it finishes the step it learns in, saves a checkpoint and gives its place up.

        Returns at once; `wait` or `events` see it pause. It stays `paused` until `resume`, whatever is
        restarted meanwhile, and then goes on as if nothing had been. Episodes under way are played again.

        Raises:
            ConflictError: it has ended.
        """
        self._view = self._api.pause(self.id)
        return self._view

    def resume(self) -> JobView:
        """Queue a paused job again; one that is not paused stays as it is.

        Raises:
            ConflictError: it has ended, or its budget is used up: raise that with `update` first.
        """
        self._view = self._api.resume(self.id)
        return self._view

    def update(self, **settings: Any) -> JobView:
        """Change settings while the job trains: from the next step on that it learns in, the budget at once.

        The job's log says from which step on. A job that is killed and resumed repeats its steps with the
        settings that they had.

        Args:
            settings: `budget`, `learning_rate`, `value_learning_rate`, `entropy_coefficient`,
                `kl_coefficient`, `max_grad_norm`, `weight_decay`, as far as jobs of this kind have them.
                A learning rate is the schedule's highest; the schedule itself goes on.

        Raises:
            InvalidRequestError: a setting cannot be changed while a job trains, or not to this value.
            ConflictError: it has ended.
        """
        self._view = self._api.update(self.id, update_request(settings))
        return self._view

    def delete(self) -> int:
        """Delete an ended job: its events, its checkpoints, and with them its policy.

        Returns:
            Bytes of files that were freed on the service's disk.

        Raises:
            ConflictError: it has not ended, or a job that has not ended builds on its policy.
            NotFoundError: it was deleted before.
        """
        return self._api.delete(self.id).bytes

    def policy(
        self,
        version: int | None = None,
        *,
        temperature: float | None = None,
        max_turn_tokens: int | None = None,
        seed: int = 0,
        top_p: float = 1.0,
        top_k: int = 0,
        structured: Structured | None = None,
        agent: str = "",
    ) -> Policy:
        """Return what the job trains, to act with.

        Args:
            version: None takes the newest at every answer, also while the job still trains; 0 is the model
                before any training. Others are those that have a checkpoint.
            temperature: Of its answers; None is the job's own, 0 always takes the likeliest token.
            max_turn_tokens: Of one answer; None is the job's own.
            seed: Makes its answers repeatable.
            top_p: Above temperature 0, draw only among the fewest likeliest tokens that have so much of the
                probability together.
            top_k: Before that, only among so many of the likeliest; 0 is all.
            structured: What every answer must look like; needs a service with `engine=vllm`.
            agent: Whose policy, where the job trains the agents of a game.

        Raises:
            InvalidRequestError: a setting of sampling is out of range, `version` is no number, or the job has
                no such agent.
            PolicyVersionGoneError: `version` is neither 0 nor the newest, and has no checkpoint.
        """
        from tinkergym.remote.policy import Policy

        if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
            raise InvalidRequestError(
                f"must be the number of a version, not {version!r}",
                hint="leave it out for the newest; 0 is the model before training",
                field="version",
            )
        # The checkpoints of several policies are not listed here; the service says which are kept.
        if not agent and version and version != (newest := self.view().policy_version):
            kept = sorted({checkpoint.policy_version for checkpoint in self.checkpoints(agent=agent)})
            if version not in kept:
                there = ", ".join(map(str, kept)) or "none"
                raise PolicyVersionGoneError(
                    f"version {version} of {self.id} is not kept: it has no checkpoint, and is neither the "
                    f"newest, {newest}, nor 0, the model before training",
                    hint=f"versions with a checkpoint: {there}; see checkpoint_every and keep_checkpoints",
                    field="version",
                )
        return Policy.of_job(
            self._api,
            self._view,
            version=version,
            temperature=temperature,
            max_turn_tokens=max_turn_tokens,
            seed=seed,
            top_p=top_p,
            top_k=top_k,
            structured=structured,
            agent=agent,
        )

    def crossplay(
        self,
        versions: Sequence[int] | None = None,
        *,
        against: Sequence[str] = ("random",),
        game: str | None = None,
        pairs: int = 50,
        seed: int = 0,
        temperature: float | None = None,
        progress: bool | None = None,
    ) -> CrossPlay:
        """Let versions of the job's policies play each other and others, in mirrored games; see `ratings.md`.

        Args:
            versions: Of each policy; None takes the start, the newest, and up to three that are kept.
            against: Further players: names that the game offers, such as `random`; `job-ID@40`; models.
            game: The game, if the job trained something else; None is the job's own.
            pairs: Seeds per matchup, each played with the seats both ways.
            seed: The first of them.
            temperature: Of the policies' answers; None is as in training.
            progress: Show on the error stream how many games have ended; None does so on a terminal only.

        Raises:
            InvalidRequestError: the job's environment is no game, or a player is none.
            NotFoundError: a version is not kept.
        """
        from tinkergym.evaluation.crossplay import crossplay
        from tinkergym.registration.games import make_playable
        from tinkergym.remote.game_players import find_player, game_of, version_players

        view = self.view()
        reference = game_of(view, game)
        players = version_players(self._api, view, versions=versions, temperature=temperature)
        table = make_playable(reference)
        players += [find_player(self._api, name, table, temperature=temperature) for name in against]
        table.close()
        return crossplay(players, reference, pairs=pairs, seed=seed, progress=progress)

    def ratings(self, *, anchor: str | None = None, **how: Any) -> Ratings:
        """Rate versions of the job's policies; `how` is as for `crossplay`, whose games are played anew.

        Args:
            anchor: The player whose rating is 0; None takes `random` if it plays, else the mean.
            how: See `crossplay`.
        """
        return self.crossplay(**how).ratings(anchor=anchor)

    def exploitability(
        self, version: int | None = None, *, game: str | None = None, greedy: bool = False
    ) -> Exploitability:
        """Compute what a best response wins against a version of the job's policies, in a small game.

        The policies play their own seats, or one policy plays all; see `ratings.md`.

        Args:
            version: Of each policy; None takes the newest.
            game: The game, if the job trained something else; None is the job's own.
            greedy: Measure play at temperature 0, which is exact in larger games too, such as tic-tac-toe.

        Raises:
            InvalidRequestError: the game is too large, or its chance cannot be listed.
            NotFoundError: the version is not kept.
        """
        from tinkergym.evaluation.exploitability import GameTree
        from tinkergym.evaluation.greedy_play import greedy_exploitability
        from tinkergym.evaluation.policy_strategy import greedy_choice, policy_strategy
        from tinkergym.registration.games import make_playable
        from tinkergym.remote.game_players import game_of, version_players
        from tinkergym.rollout.environment_host import system_prompt_of

        view = self.view()
        table = make_playable(game_of(view, game))
        chosen = view.policy_version if version is None else version
        players = version_players(self._api, view, versions=[chosen])
        policies: Any = {  # no scripts are among them
            agent: next(one.plays for one in players if one.can_play(agent))
            for agent in table.possible_agents
        }
        prompt = system_prompt_of(table)
        if greedy:
            return greedy_exploitability(table, greedy_choice(policies, environment_prompt=prompt))
        tree = GameTree(table)
        return tree.exploitability(policy_strategy(policies, tree.situations, environment_prompt=prompt))

    def checkpoints(self, *, agent: str = "") -> list[CheckpointView]:
        """List the checkpoints that are still there, oldest first.

        Args:
            agent: Only of the policy of this agent; empty lists those of all that the job trains.
        """
        return [one for one in self._api.checkpoints(self.id) if agent in ("", one.agent)]

    def download(self, step: int | None = None, path: str | Path = ".", *, agent: str = "") -> Path:
        """Fetch a checkpoint and verify every file against the SHA-256 in its manifest.

        Args:
            step: Which checkpoint; None takes the newest.
            path: A folder, made if it is missing; the files land in `path/<job id>/step-000010/`, or in
                `path/<job id>/<agent>/step-000010/` where policies belong to agents.
            agent: Whose policy, where the job trains several.

        Returns:
            The folder with the files.

        Raises:
            NotFoundError: there is no such checkpoint.
            InvalidRequestError: `path` cannot be written.
            CheckpointCorruptError: a file arrived with a wrong hash; it is not kept.
        """
        checkpoint = self._checkpoint(step, agent)
        folder = Path(path) / _file_name(self.id)
        folder = (folder / _file_name(checkpoint.agent) if checkpoint.agent else folder) / (
            f"step-{checkpoint.step:06d}"
        )
        with writing_to(folder):
            folder.mkdir(parents=True, exist_ok=True)
        # The manifest says what the other files must hash to.
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
                    f"{name} of checkpoint {checkpoint.step} arrived damaged: its SHA-256 is {digest}, "
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
            version: Of the policy, one that has a checkpoint; None takes the newest.
            merge: Write a whole model instead of an adapter; needs the extra `backend` here.
            base: For `merge`: where the base model is, if it is not found by itself.
            agent: Whose policy, where the job trains several.

        Raises:
            ConflictError: the folder exists, or `base` is another model than the one that was trained.
            InvalidRequestError: `path` cannot be written.
            NotFoundError: there is no such checkpoint.
            CheckpointCorruptError: a file arrived with a wrong hash.
            MissingExtraError: `merge` without torch, transformers and PEFT.
        """
        from tinkergym.remote.export import export_policy

        return export_policy(
            self._api, self.id, Path(path), version=version, merge=merge, base=base, agent=agent
        )

    def episodes(self, *, first_step: int = 0, last_step: int | None = None) -> StoredEpisodes:
        """Fetch the episodes that the service stored: to read, to filter, and to train on again.

        Args:
            first_step: Only of this train step and later ones.
            last_step: Only of this one and earlier ones.

        Raises:
            InvalidRequestError: the job plays no episodes.
        """
        from tinkergym.datasets.stored_episodes import stored_episodes

        if not isinstance(self.spec, PlayedSpec):
            raise InvalidRequestError(
                f"{self.id} is of the kind {self.spec.kind!r}, which plays no episodes",
                hint="ask a job of client.train or client.distill",
            )
        records = self._api.stored_episodes(self.id, first_step=first_step, last_step=last_step)
        return stored_episodes(self.spec, records, origin=self.id)

    def rescore(
        self,
        reward: NewReward,
        *,
        tasks: TaskSource | None = None,
        first_step: int = 0,
        last_step: int | None = None,
    ) -> RescoredJob[Job]:
        """Show what another reward would have said of the stored episodes; see `docs/guides/rewards.md`.

        Args:
            reward: A `Rubric`, a class of `SingleTurnEnv`, or a function from a stored episode to a number;
                all read the transcript and the task's row, and nothing else.
            tasks: Where the rows come from whose fields a rubric's terms name.
            first_step: Only episodes of this train step and later ones.
            last_step: Only of this one and earlier ones.

        Raises:
            InvalidRequestError: the reward comes out of state that is not stored, or the job plays none.
        """
        from tinkergym.evaluation.rescore import rescore
        from tinkergym.remote.rescored_job import RescoredJob

        episodes = self.episodes(first_step=first_step, last_step=last_step)
        assert isinstance(self.spec, PlayedSpec), "episodes refuses other jobs"
        found = rescore(self.spec, episodes, reward, tasks=tasks, origin=self.id)

        def start(spec: AnyJobSpec) -> Job:
            return Job(self._api, self._api.create_job(spec, idempotency_key=uuid.uuid4().hex))

        return RescoredJob(found, self._api, self.view(), start)

    def certificate(self, path: str | Path = ".", *, bundle: bool = False) -> WrittenCertificate:
        """Write what a colleague can check of the run; see `docs/guides/certificates.md`.

        Args:
            path: A folder, made if it is missing. `JOB_ID.certificate.json` and `JOB_ID.certificate.html`
                land in it, or `JOB_ID.bundle.tar`.
            bundle: Pack the newest adapter, the stored episodes and all events along, in one file.

        Raises:
            InvalidRequestError: `path` cannot be written.
        """
        from tinkergym.remote.certificates import write_certificate

        return write_certificate(self._api, self.id, Path(path), bundle=bundle)

    def close(self) -> None:
        """Stop playing episodes and reporting in this process.

        The job goes on, and waits for a client if it needs one. Of a job that has ended, trackers are told
        everything first.
        """
        if self._rollout is not None:
            self._rollout.stop()
        for reporter in self._reporters:
            reporter.close(ended=self._view.state.final)

    def _checkpoint(self, step: int | None, agent: str = "") -> CheckpointView:
        from tinkergym.remote.export import of_one_policy

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
        interrupt = KeyboardInterrupt()
        interrupt.add_note(
            f"The job {goes_on}. `tinkergym jobs attach {self.id}` shows it, and "
            f"`tinkergym jobs cancel {self.id}` ends it."
        )
        return interrupt

    def _check_rollout(self) -> None:
        if self._rollout is not None:
            self._rollout.raise_if_broken()

    def _note(self, event: Event) -> None:
        """Keep what whoever waits for the job should hear, each kind once, and the curve."""
        body = event.body
        if isinstance(body, StepEvent):
            value = body.reward_mean if isinstance(self.spec, PlayedSpec) else body.loss
            if value is not None:
                self._curve[body.step] = value
        if isinstance(body, UpdateEvent) and body.from_step is not None:
            known = self._updates.get(body.from_step)
            words = update_words(body)
            self._updates[body.from_step] = words if known in (None, words) else f"{known}, {words}"
        if isinstance(body, WarningEvent):
            times = f", {body.count} times" if body.count > 1 else ""
            text = f"{self.id} at step {body.step}: {body.name}{times}: {body.message}"
            self._warnings.setdefault(body.name, text)

    def _news(self) -> Iterator[str]:
        """Yield what `wait` has not said yet."""
        for name, text in self._warnings.items():
            if name not in self._told:
                self._told.add(name)
                yield text
        # Of the view, not of the event: by now somebody may play on.
        state = self._view.state
        played_here = self._rollout is not None and self._rollout.is_playing
        if state is JobState.PAUSED and state not in self._told:
            self._told.add(state)
            yield f"{self.id} is paused: {self._view.reason}"
        elif state is not JobState.PAUSED:
            self._told.discard(JobState.PAUSED)  # the next pause is news again
        if state is JobState.WAITING_FOR_CLIENT and not played_here and state not in self._told:
            self._told.add(state)
            yield f"{self.id} waits for a client to play its episodes; play on: {how_to_play_on(self._view)}"

    def _final_view(self) -> JobView:
        """Read the state that its event has announced."""
        view = self.view()
        while not view.state.final:
            time.sleep(0.05)
            view = self.view()
        return view


def raise_for(view: JobView) -> JobView:
    """Return a job that ended well; raise what ended it otherwise.

    Raises:
        JobCancelledError: it was cancelled.
        JobFailedError: it failed.
    """
    if view.state is JobState.CANCELLED:
        raise JobCancelledError(
            f"{view.job_id} was cancelled at step {view.step} of {view.spec.steps}",
            hint="its checkpoints are kept",
        )
    if view.state is JobState.FAILED:
        cause: TinkerGymError | None = from_wire(view.error.model_dump()) if view.error else None
        raise JobFailedError(
            f"{view.job_id} failed at step {view.step} of {view.spec.steps}: "
            f"{cause.message if cause else view.reason or 'the service gave no reason'}",
            hint=cause.hint if cause else "",
            field=cause.field if cause else "",
        ) from cause
    return view


def how_to_play_on(view: JobView) -> str:
    """Return what plays the episodes of a job that waits for it."""
    from tinkergym.rollout.local_environment import LOCAL

    assert isinstance(view.spec, PlayedSpec)
    if view.spec.rollout == "script":
        return f"its script, with TrainRemotely(env, job_id={view.job_id!r})"
    own = "".join(
        f" --env MODULE:{env_id.removeprefix(LOCAL).removesuffix('-v0')}"
        for env_id in dict.fromkeys(one.id for one in view.spec.own_environments.values())
        if env_id.startswith(LOCAL)
    )
    return f"tinkergym jobs attach {view.job_id}{own}"


def _after(view: JobView, event: Event) -> JobView:
    """Return a job as it was after an event; one that the view has seen already, in a replay, is nothing new.

    The service dates a job by its last event, so the two times are of one clock.
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
    """Take no path from the service: what it names lands inside the folder that was asked for."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".") or "_"
