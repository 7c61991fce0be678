from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from tinkergym.basics.written_files import writing_to
from tinkergym.datasets.stored_episodes import StoredEpisode, StoredEpisodes, stored_episodes
from tinkergym.display.run_overview import RunOverview
from tinkergym.errors import InvalidRequestError
from tinkergym.evaluation.rescore import NewReward, rescore
from tinkergym.remote.api import Api
from tinkergym.remote.branching import Branches, branch_job
from tinkergym.remote.certificate_download import WrittenCertificate, write_certificate
from tinkergym.remote.checkpoint_download import checkpoint_at, download_checkpoint
from tinkergym.remote.inference_jobs import results, write_results
from tinkergym.remote.overview import overview_of
from tinkergym.remote.policy import Policy
from tinkergym.remote.policy_export import Exported, export_policy
from tinkergym.remote.rescored_job import RescoredJob
from tinkergym.rollout.local_environment import EnvSource
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.evaluation import BranchRequest
from tinkergym.schema.events import CheckpointView, EvaluationEvent, JobState
from tinkergym.schema.jobs.spec import JobSpec
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.parsing import parse
from tinkergym.tasks.source import TaskSource

_POINTS_OF_A_PAGE = 20_000


class JobRecord:
    """Reads what a service has stored of a job. Changes nothing there; what was read last is `_view`."""

    def __init__(self, api: Api, view: JobView) -> None:
        """Read a job.

        Args:
            api: The service's API.
            view: The last known view of the job.
        """
        self._api = api
        self._view = view

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

    def evaluations(self, name: str | None = None) -> list[EvaluationEvent]:
        """Return the finished evaluations, in order of their steps.

        Args:
            name: Only those with this name, see `EvaluateEvery.name`; None returns all.
        """
        return [done for done in self._api.evaluations(self.id) if name in (None, done.name)]

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
    ) -> RescoredJob[Self]:
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
        return RescoredJob(found, self._api, self.view(), self._start)

    def _start(self, spec: JobSpec) -> Self:
        return type(self)(self._api, self._api.create_job(spec, idempotency_key=uuid.uuid4().hex))

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
            InvalidRequestError: `path` cannot be written, or it is an inference job, which trains nothing.
        """
        return write_certificate(self._api, self.id, Path(path), bundle=bundle)

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
        checkpoint = checkpoint_at(self.checkpoints(agent=agent), self.id, step)
        return download_checkpoint(self._api, self.id, checkpoint, Path(path))

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
