"""Jobs that evaluate during training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, field_validator

from tinkergym.schema.evaluate_every import MOST_EPISODES, MOST_EVALUATIONS, EvaluatedTasks, EvaluateEvery
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.training_spec import TrainingSpec
from tinkergym.schema.refusals import Refusal


class EvaluatedSpec(TrainingSpec):
    """Settings of jobs that can evaluate during training: all but a user's own loop."""

    evaluate: list[EvaluateEvery] = Field([], max_length=MOST_EVALUATIONS)
    """Evaluations during training, whose episodes are not trained on. The first of them decides which version
    is `@best`, unless `best_by` names another. In a game, each policy's own evaluations decide its
    `@best`."""
    best_by: str = Field("", max_length=500)
    """Decides which version is `@best`: the name of an evaluation, for its mean return, or `NAME/METRIC` for
    a metric of its environment (higher is better)."""

    evaluated_tasks: dict[str, EvaluatedTasks] = Field({}, max_length=MOST_EVALUATIONS)
    """The tasks of each evaluation whose environment draws from a dataset, by its name; recorded by whichever
    side creates the environment first, client or service."""

    @property
    def own_environments(self) -> dict[str, EnvironmentRef]:
        """The job's environments, if it plays, by the names used in metrics and evaluations."""
        return {}

    def known_tasks(self) -> Mapping[str, EvaluatedTasks]:
        """Return what is known of the tasks of its evaluations, by their names."""
        return self.evaluated_tasks

    def with_evaluated_tasks(self, found: Mapping[str, EvaluatedTasks]) -> Self | Refusal:
        """Return the job with a note of the tasks of its evaluations."""
        for one in self.evaluations:
            known = found.get(self.name_of(one))
            if known is None and one.samples > 1:
                where = self.environment_of(one).id
                return Refusal(
                    "evaluate",
                    f"samples counts episodes of a task, but {where} has none, or unknown ones",
                    "leave samples out, and set episodes",
                )
            episodes = known.tasks * one.samples if known is not None and one.episodes is None else 0
            if one.samples > 1 and episodes > MOST_EPISODES:
                return Refusal(
                    "evaluate",
                    f"{self.name_of(one)} would play {episodes} episodes, more than {MOST_EPISODES}",
                    "set episodes, for that many different tasks",
                )
        return self.model_copy(update={"evaluated_tasks": dict(found)})

    @property
    def data_hashes(self) -> dict[str, str]:
        """The hashes of its data, and of the tasks of its evaluations."""
        evaluated = {f"evaluation {name}": one.sha256 for name, one in self.evaluated_tasks.items()}
        return super().data_hashes | {name: sha256 for name, sha256 in evaluated.items() if sha256}

    def episodes_of(self, evaluation: EvaluateEvery) -> int:
        """Return how many episodes an evaluation plays."""
        return len(self.tasks_of(evaluation))

    def tasks_of(self, evaluation: EvaluateEvery) -> list[int | None]:
        """Return the task of each episode of an evaluation, in order; None is drawn by the episode's seed."""
        known = self.evaluated_tasks.get(self.name_of(evaluation))
        return evaluation.tasks_played(known.tasks if known else 0)

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

    @property
    def played_by(self) -> Literal["", "server", "client", "script"]:
        """Who plays the episodes of its evaluations; empty if there are none."""
        if not self.evaluate:
            return ""
        return "client" if any(one.is_local for one in self.evaluate) else "server"

    def environments_played(self) -> list[EnvironmentRef]:
        """Return the environments of its episodes: its own, or those of its evaluations."""
        own = list(self.own_environments.values())
        return own or [self.environment_of(one) for one in self.evaluate]

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
        named = self.named_by_best_by
        if named is not None and named[0] in own:
            return named
        return (own[0], "") if own else None

    @property
    def named_by_best_by(self) -> tuple[str, str] | None:
        """The evaluation and the metric that `best_by` names; None if it names none."""
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
