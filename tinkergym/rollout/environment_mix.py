"""The environments that a script trains in: one, or several with weights.

The service gets names, arguments and weights; how each is created stays in this process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinkergym.errors import InvalidRequestError, UnknownEnvironmentError
from tinkergym.rollout.environment_host import AnyEnv
from tinkergym.rollout.host_pool import MakeEnv
from tinkergym.rollout.local_environment import Environment, EnvSource, describe, for_job
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.names import REMOTE_ID

Weighted = tuple[EnvSource, float] | tuple[EnvSource, float, Mapping[str, Any]]
EnvSources = EnvSource | Sequence[Weighted]
"""`train("pack/Env-v0")`, or `train([("pack/Easy-v0", 0.7), ("pack/Hard-v0", 0.3, {"size": 9})])`."""

HOW_TO_WEIGH = 'write [("pack/Easy-v0", 0.7), ("pack/Hard-v0", 0.3, {"size": 9})]; arguments may be left out'


@dataclass(frozen=True, slots=True)
class MakeOneOf:
    """Creates the environment that a request names, with the arguments of the request.

    Evaluations add arguments of their own to those of the job's environments, so arguments select none.

    A class, not a nested function: it must be picklable for environments in their own processes.
    """

    makers: dict[str, MakeEnv]

    def __call__(self, ref: EnvironmentRef) -> AnyEnv:
        """Create it."""
        return self.makers[_key(ref)](ref)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentMix:
    """The environments of one job; often one."""

    environments: list[Environment]
    weights: list[float]

    @property
    def settings(self) -> dict[str, Any]:
        """The job's settings for it."""
        if len(self.environments) == 1:
            return {"environment": self.environments[0].ref}
        parts = zip(self.environments, self.weights, strict=True)
        return {"environments": [{**one.ref.model_dump(), "weight": weight} for one, weight in parts]}

    @property
    def only_here(self) -> bool:
        """Whether one of them is unknown to every service."""
        return any(one.only_here for one in self.environments)

    @property
    def unknown_here(self) -> str:
        """The id of one that is not registered in this process; empty if there is none."""
        return next((one.ref.id for one in self.environments if one.make is None), "")

    @property
    def make(self) -> MakeEnv:
        """How this process creates them, if all are known here."""
        assert not self.unknown_here
        return _one_of([(one.ref, one.make) for one in self.environments if one.make is not None])


def describe_mix(env: EnvSources, kwargs: Mapping[str, Any] | None = None) -> EnvironmentMix:
    """Resolve what the user passed.

    Raises:
        InvalidRequestError: It is neither an environment nor a list of environments with weights, or two
            classes or functions in it have the same name.
    """
    if isinstance(env, str) or not isinstance(env, Sequence):
        return EnvironmentMix(environments=[describe(env, kwargs)], weights=[1.0])
    if kwargs is not None:
        raise InvalidRequestError(
            "with several environments, each has its own arguments", hint=HOW_TO_WEIGH, field="env_kwargs"
        )
    if not env:
        raise InvalidRequestError(
            "there is no environment in the list", hint=HOW_TO_WEIGH, field="environments"
        )
    parts = [_part(one, at) for at, one in enumerate(env)]
    by_id: dict[str, EnvSource] = {}
    for source, _, _ in parts:
        name = describe(source).ref.id if callable(source) else ""
        if name and by_id.setdefault(name, source) is not source:
            raise InvalidRequestError(
                f"two different environments have the name {name}", hint="rename one", field="environments"
            )
    return EnvironmentMix(
        environments=[describe(source, own) for source, _, own in parts],
        weights=[weight for _, weight, _ in parts],
    )


def _part(one: object, at: int) -> tuple[EnvSource, float, Mapping[str, Any] | None]:
    if not isinstance(one, tuple | list) or not 2 <= len(one) <= 3:
        raise InvalidRequestError(
            f"{one!r:.80} is not an environment with a weight", hint=HOW_TO_WEIGH, field="environments"
        )
    source, weight, own = (*one, None)[:3]
    # Of a list with one environment the service never sees the weight.
    if not isinstance(weight, int | float) or not weight > 0:
        raise InvalidRequestError(
            f"{weight!r:.80} is not a number above 0", hint=HOW_TO_WEIGH, field=f"environments.{at}.weight"
        )
    return source, weight, own


def makers_of(env: EnvSources | Sequence[EnvSource] | None, spec: PlayedSpec) -> MakeEnv:
    """Return how to create the environments of an existing job, for `attach`.

    Args:
        env: As for `for_job`, or a list with the classes or functions of environments that are not registered
            here, with or without weights.
        spec: The job's settings.

    Raises:
        InvalidRequestError: `env` contains an environment that is not the job's.
        UnknownEnvironmentError: One of the job's environments is not known in this process.
    """
    if not spec.environments:
        if env is not None and not isinstance(env, str) and isinstance(env, Sequence):
            env = _source(env[0]) if len(env) == 1 else _refused(spec)
        return for_job(env, spec.environment)
    given = [] if env is None else [env] if isinstance(env, str) or not isinstance(env, Sequence) else env
    sources = {describe(_source(one)).ref.id: _source(one) for one in given}
    refs = list(spec.own_environments.values())
    return makers_from(
        sources,
        refs,
        refused="the job does not play",
        known=f"it plays {', '.join(spec.own_environments)}",
        missing="pass its class with all of the job's environments: attach(job_id, env=[MyEnv, ...])",
    )


def makers_from(
    sources: Mapping[str, Any], refs: Sequence[EnvironmentRef], *, refused: str, known: str, missing: str
) -> MakeEnv:
    """Return how to create environments that a job names.

    Args:
        sources: The classes and functions that were passed, by id.
        refs: The environments.
        refused: What is said of sources that are not among them, before their names.
        known: The hint for those.
        missing: The hint for an environment that is known neither here nor from `sources`.

    Raises:
        InvalidRequestError: `sources` has one that is not among `refs`.
        UnknownEnvironmentError: One of the environments is not known in this process.
    """
    strangers = sorted(sources.keys() - {ref.id for ref in refs})
    if strangers:
        raise InvalidRequestError(f"{refused} {', '.join(strangers)}", hint=known, field="env")
    try:
        return _one_of([(ref, for_job(sources.get(ref.id), ref)) for ref in refs])
    except UnknownEnvironmentError as error:
        error.hint = missing
        raise


def _refused(spec: PlayedSpec) -> EnvSource:
    raise InvalidRequestError(
        f"the job plays one environment, {spec.environment.id}", hint="hand over that alone", field="env"
    )


def _source(one: Any) -> Any:
    return one[0] if isinstance(one, tuple | list) and one else one


def _one_of(parts: Sequence[tuple[EnvironmentRef, MakeEnv]]) -> MakeEnv:
    if len(parts) == 1:
        return parts[0][1]
    return MakeOneOf({_key(ref): make for ref, make in parts})


def _key(ref: EnvironmentRef) -> str:
    # Each environment server has a token of its own, which stays in this process and is in no request.
    return f"{ref.id} {ref.kwargs.get('url')}" if ref.id == REMOTE_ID else ref.id
