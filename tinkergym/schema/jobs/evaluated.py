"""Jobs that can evaluate during training."""

from __future__ import annotations

from typing import Self

from pydantic import Field, JsonValue, field_validator, model_validator

from tinkergym.schema.evaluate_every import MOST_EVALUATIONS, EvaluateEvery
from tinkergym.schema.jobs.common import TrainingSpec
from tinkergym.schema.model import WireModel
from tinkergym.schema.names import REMOTE_ID


class EnvironmentRef(WireModel):
    """An environment, by its registered id; never code or data."""

    id: str = Field(min_length=1, max_length=200)
    kwargs: dict[str, JsonValue] = {}


class EvaluatedSpec(TrainingSpec):
    """Settings of jobs that can evaluate during training: all but a user's own loop."""

    evaluate: list[EvaluateEvery] = Field([], max_length=MOST_EVALUATIONS)
    """Evaluations during training, whose episodes are not trained on. The first of them decides which version
    is `@best`, unless `best_by` names another. In a game, each policy's own evaluations decide its
    `@best`."""
    best_by: str = Field("", max_length=500)
    """Decides which version is `@best`: the name of an evaluation, for its mean return, or `NAME/METRIC` for
    a metric of its environment (higher is better)."""

    @property
    def own_environments(self) -> dict[str, EnvironmentRef]:
        """The job's environments, if it plays, by the names used in metrics and evaluations."""
        return {}

    @property
    def evaluations(self) -> list[EvaluateEvery]:
        """`evaluate`, with one entry per environment of the job where an entry names none."""
        own = self.own_environments
        if len(own) < 2:
            return self.evaluate
        return [
            one
            if one.environment
            else one.model_copy(
                update={"environment": name, "name": f"{one.name}:{name}" if one.name else name}
            )
            for one in self.evaluate
            for name in ([""] if one.environment else own)
        ]

    @field_validator("evaluate", mode="before")
    @classmethod
    def _one_evaluation_is_a_list_of_one(cls, given: object) -> object:
        return given if isinstance(given, list | tuple) else [given]

    @model_validator(mode="after")
    def _its_evaluations_can_be_played(self) -> Self:
        own = self.own_environments
        for one in self.evaluations:
            if not own and not one.environment:
                raise ValueError("evaluate must name an environment, because this job plays none itself")
            if own and one.is_local and one.environment not in {ref.id for ref in own.values()}:
                raise ValueError(
                    "evaluate must name the job's own environment or one of the service, because the workers "
                    "that play this job have no other"
                )
            if not own and one.is_local != self.evaluate[0].is_local:
                raise ValueError(
                    "evaluate mixes environments of the script and of the service; use one kind in a job"
                )
            if one.environment == REMOTE_ID or "://" in one.environment:
                raise ValueError("evaluate must name an environment of the service, not an address")
            is_remote = self.environment_of(one).id == REMOTE_ID
            if is_remote and {"url", "token"} & set(one.env_kwargs):
                raise ValueError(
                    "evaluate uses the job's own environment server; leave url and token out of its "
                    "env_kwargs"
                )
        for one in self.evaluate if len(own) > 1 else ():
            if not one.environment and (one.patience is not None or one.target is not None):
                self._refuse(
                    f"evaluate has patience or target for several environments at once; name the one that "
                    f"may end the job: {', '.join(own)}"
                )
        names = [self.name_of(one) for one in self.evaluations]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"evaluate has two of the name {twice!r}; give each a name=")
        if self.best_by and self._named_by_best_by is None:
            self._refuse(
                f"best_by does not name an evaluation; write NAME or NAME/METRIC with one of "
                f"{', '.join(map(repr, names)) or 'those in evaluate'}"
            )
        return self

    @property
    def client_plays_evaluations(self) -> bool:
        """Whether the job plays no episodes but those of its evaluations, and a client plays them."""
        return not self.own_environments and any(one.is_local for one in self.evaluate)

    def agent_of(self, evaluation: EvaluateEvery) -> str:
        """Return the agent whose policy an evaluation measures; empty if the job trains one policy."""
        return evaluation.agent or self.trained_agents[0]

    def best_decided_by(self, agent: str = "") -> tuple[str, str] | None:
        """Return the evaluation that decides a policy's best version, and its metric.

        An empty metric is the mean return. None if no evaluation measures that policy.

        Args:
            agent: The policy's agent; empty if the job trains one policy.
        """
        own = [self.name_of(one) for one in self.evaluations if self.agent_of(one) == agent]
        named = self._named_by_best_by
        if named is not None and named[0] in own:
            return named
        return (own[0], "") if own else None

    @property
    def _named_by_best_by(self) -> tuple[str, str] | None:
        names = [self.name_of(one) for one in self.evaluations]
        if self.best_by in names:
            return self.best_by, ""
        # Names are ids that contain a slash, so the longest match wins.
        fitting = [name for name in names if self.best_by.startswith(f"{name}/")]
        name = max(fitting, key=len, default=None)
        return None if name is None else (name, self.best_by.removeprefix(f"{name}/"))

    def environment_of(self, evaluation: EvaluateEvery) -> EnvironmentRef:
        """Return the environment that an evaluation plays."""
        for name, own in self.own_environments.items():
            if evaluation.environment in ("", name):
                return EnvironmentRef(id=own.id, kwargs={**own.kwargs, **evaluation.env_kwargs})
        return EnvironmentRef(id=evaluation.environment, kwargs=evaluation.env_kwargs)

    def name_of(self, evaluation: EvaluateEvery) -> str:
        """Return the name of an evaluation in events and curves."""
        return evaluation.name or self.environment_of(evaluation).id
