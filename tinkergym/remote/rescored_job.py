"""Rescored episodes of a job, and jobs that start from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from tinkergym.datasets.rows import DataSource
from tinkergym.evaluation.rescore import Rescored
from tinkergym.remote.api import Api
from tinkergym.remote.dataset_upload import written_job
from tinkergym.schema.ids import policy_of
from tinkergym.schema.jobs.spec import JobSpec
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.uploaded_data import DataKind

Started = TypeVar("Started")
"""A started job, such as `tinkergym.Job`."""


class RescoredJob(Rescored, Generic[Started]):
    """A report over a job's episodes that can start further training on them."""

    def __init__(self, found: Rescored, api: Api, view: JobView, start: Callable[[JobSpec], Started]) -> None:
        """Wrap a report. Users get one from `Job.rescore`.

        Args:
            found: The report.
            api: The service's API.
            view: The job.
            start: Starts another job.
        """
        super().__init__(list(found), view.job_id, no_advantages=found.no_advantages)
        self._api, self._view, self._start_job = api, view, start

    def sft(self, *, best_of: int | None = None, min_reward: float | None = None, **settings: Any) -> Started:
        """Start SFT on the episodes that the new reward prefers, from the job's policy.

        Args:
            best_of: As in `StoredEpisodes.to_sft`.
            min_reward: As in `StoredEpisodes.to_sft`, for the new rewards.
            **settings: As in `Client.sft`: steps or epochs, learning_rate, ...

        Raises:
            InvalidRequestError: No episode is left.
        """
        return self._start("sft", self.episodes.to_sft(best_of=best_of, min_reward=min_reward), settings)

    def preference(self, *, min_margin: float = 0.0, **settings: Any) -> Started:
        """Start preference training on pairs that the new reward ranks, from the job's policy.

        Args:
            min_margin: As in `StoredEpisodes.to_preference`.
            **settings: As in `Client.preference`.

        Raises:
            InvalidRequestError: No pair is left.
        """
        return self._start("preference", self.episodes.to_preference(min_margin=min_margin), settings)

    def _start(self, kind: DataKind, data: DataSource, settings: dict[str, Any]) -> Started:
        spec, agent = self._view.spec, self._agent()
        # Data must be rendered as the episodes were.
        rendering = ("chat_template", "template_variables", "template_date")
        template = {name: value for name in rendering if (value := getattr(spec, name))}
        own = {
            "initial_policy": policy_of(self._view.job_id, agent),
            "adapter": spec.adapter_of(agent),
            **template,
            **settings,
        }
        written = written_job(
            self._api,
            kind,
            data,
            model=own.pop("model", spec.for_agent(agent).model),
            eval_data=own.pop("eval_data", None),
            steps=own.pop("steps", None),
            epochs=own.pop("epochs", None),
            answers=own.pop("answers", "all"),
            on_overlong=own.pop("on_overlong", "refuse"),
            settings=own,
        )
        return self._start_job(written)

    def _agent(self) -> str:
        """Return whose policy played the episodes; empty outside games, and if several did."""
        spec = self._view.spec
        if not spec.seats:
            return ""
        played = {spec.policy_at(one.episode.agent) for one in self}
        return played.pop() if len(played) == 1 else ""
