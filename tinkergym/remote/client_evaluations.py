"""Evaluations of a job on a dataset in an environment of the script, whose episodes this process plays.

The service gets a name and arguments. Without a client the episodes wait, and training continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Any, TypeVar

from tinkergym.errors import InvalidRequestError, TinkerGymError
from tinkergym.remote.environment_check import check_environment
from tinkergym.rollout.environment_mix import makers_from
from tinkergym.rollout.executors import made
from tinkergym.rollout.host_pool import MakeEnv
from tinkergym.rollout.local_environment import describe
from tinkergym.schema.evaluate_every import EvaluatedTasks, EvaluateEvery
from tinkergym.schema.jobs.evaluated_spec import EvaluatedSpec
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.training_spec import TrainingSpec
from tinkergym.schema.names import LOCAL
from tinkergym.schema.refusals import Refusal
from tinkergym.schema.views import RendererBundle
from tinkergym.tasks.overlap import overlap_of

Source = Callable[..., Any]
Evaluated = TypeVar("Evaluated", bound=EvaluatedSpec)


def sources_in(evaluate: object) -> list[Source]:
    """Return the classes and functions in a script's setting `evaluate`."""
    given = evaluate if isinstance(evaluate, list | tuple) else [evaluate]
    return [one.source for one in given if isinstance(one, EvaluateEvery) and one.source is not None]


def maker_of(sources: Sequence[Any], spec: TrainingSpec) -> MakeEnv:
    """Return how to create the environments of a job's evaluations.

    Args:
        sources: Their classes or functions.
        spec: The job's settings.

    Raises:
        InvalidRequestError: One of `sources` is not evaluated by the job, or two have the same name.
        UnknownEnvironmentError: The class of an evaluation is missing.
    """
    by_id: dict[str, Any] = {}
    for source in sources:
        name = describe(source).ref.id
        if by_id.setdefault(name, source) is not source:
            raise InvalidRequestError(
                f"two different environments have the name {name}", hint="rename one", field="evaluate"
            )
    refs = _played_here(spec)
    own = ", ".join(dict.fromkeys(ref.id for ref in refs))
    return makers_from(
        by_id,
        refs,
        refused="the job is not evaluated in",
        known=f"it is evaluated in {own or 'none of yours'}",
        missing="pass the class or function: attach(job_id, env=MyEnv), or a list of several",
    )


def check(make_env: MakeEnv, spec: TrainingSpec, bundle: RendererBundle) -> None:
    """Create and reset each environment once, before anything is started.

    Raises:
        TinkerGymError: It cannot be played; the field is `evaluate`.
    """
    for ref in _played_here(spec):
        played = RLSpec(
            environment=ref,
            steps=1,
            model=spec.model,
            chat_template=spec.chat_template,
            template_variables=spec.template_variables,
            template_date=spec.template_date,
            sampling=spec.sampling,
            rollout="client",
        )
        try:
            check_environment(make_env, played, bundle)
        except TinkerGymError as error:
            error.field = "evaluate"
            raise


def with_tasks(make_env: MakeEnv, spec: Evaluated) -> Evaluated:
    """Return a job's settings with the tasks of its evaluations.

    Raises:
        TinkerGymError: An environment cannot be created, or an evaluation has too few tasks.
    """
    noted = spec.with_evaluated_tasks(tasks_in(make_env, spec))
    if isinstance(noted, Refusal):
        raise noted.error()
    return noted


def tasks_in(make_env: MakeEnv, spec: EvaluatedSpec) -> dict[str, EvaluatedTasks]:
    """Return the tasks of each evaluation that draws from a dataset, compared with those of training.

    Raises:
        TinkerGymError: An environment cannot be created; the field is `evaluate`.
    """
    found = {}
    with ExitStack() as stack:

        def opened(ref: EnvironmentRef) -> Any:
            return stack.enter_context(closing(made(make_env, ref)))

        # What an initial policy was trained in is not known here.
        known = spec.evaluations and not spec.initial_policy
        trained = [opened(ref) for ref in spec.own_environments.values()] if known else []
        for one in spec.evaluations:
            try:
                seen = overlap_of(opened(spec.environment_of(one)), trained)
            except TinkerGymError as error:
                error.field = "evaluate"
                raise
            if seen is not None:
                found[spec.name_of(one)] = EvaluatedTasks(**seen._asdict())
    return found


def most_at_once(spec: TrainingSpec) -> int:
    """Return the largest number of episodes of one evaluation."""
    assert isinstance(spec, EvaluatedSpec)
    return max(spec.episodes_of(one) for one in spec.evaluations)


def _played_here(spec: TrainingSpec) -> list[EnvironmentRef]:
    return [one for one in spec.environments_played() if one.id.startswith(LOCAL)]
