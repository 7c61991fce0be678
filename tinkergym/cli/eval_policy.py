"""The player of `tinkergym eval`: a policy of the service or one without a model, and how it plays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tinkergym.cli.named_policy import named_policy
from tinkergym.cli.options import refuse_options
from tinkergym.errors import ServiceUnreachableError
from tinkergym.evaluation.baselines import POLICIES
from tinkergym.evaluation.chosen_tasks import inspect_environment
from tinkergym.evaluation.evaluate import make_once
from tinkergym.evaluation.records import EpisodeRecord
from tinkergym.evaluation.sampled_runs import Wanted, play_with_model, play_with_text
from tinkergym.remote.client import Client
from tinkergym.rollout.local_environment import Environment
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.tasks.overlap import Overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySource:
    """A policy that is ready to play."""

    name: str
    settings: dict[str, Any]
    """The settings that determine its answers. A run can only be continued with the same ones."""
    play: Callable[[Sequence[Wanted]], Iterator[EpisodeRecord]]
    trained_in: Sequence[EnvironmentRef] = ()
    """The environments in which it was trained, as far as they are known."""

    def overlap(self, environment: Environment) -> Overlap | None:
        """Return how many of an environment's tasks it was trained on; None if that is not known."""
        if environment.make is None or not self.trained_in:
            return None
        found = inspect_environment(environment.make, environment.ref, self.trained_in).overlap
        return None if found is None or found.trained_on is None else found


def open_policy(
    name: str, environment: Environment, sampling: Mapping[str, Any], most_turns: int, stack: ExitStack
) -> PolicySource:
    """Find a policy: `random`, `legal`, `gold`, a model, or a reference to a trained policy.

    Args:
        name: The policy's name.
        environment: The environment that it plays.
        sampling: The decoding options that were given. By default the temperature is 0, as in
            `policy.evaluate`, and the longest completion is the job's.
        most_turns: The most turns of an episode of a policy without a model.
        stack: Closes what this function opens.

    Raises:
        InvalidRequestError: There is no such policy, or it does not sample and `sampling` is given.
    """
    if name not in POLICIES:
        return _of_service(name, environment, sampling, stack)
    assert environment.make is not None
    refuse_options((f"--{one.replace('_', '-')}" for one in sampling), f"the policy {name!r} does not sample")
    env = environment.make(environment.ref)
    stack.callback(env.close)
    policy = POLICIES[name](env)
    return PolicySource(
        name=name,
        settings={"policy": name, "most_turns": most_turns},
        play=lambda wanted: play_with_text(policy, env, environment.ref.id, wanted, most_turns=most_turns),
    )


def _of_service(
    name: str, environment: Environment, sampling: Mapping[str, Any], stack: ExitStack
) -> PolicySource:
    try:
        client = stack.enter_context(Client())
    except ServiceUnreachableError as error:
        raise ServiceUnreachableError(
            f"{name!r} is not one of {', '.join(POLICIES)}, and jobs and models need a service: "
            f"{error.message}",
            hint=error.hint,
        ) from None
    policy = named_policy(client, name, {"temperature": 0.0, **sampling}, others=list(POLICIES))
    make_env = environment.make
    if make_env is not None:
        make_once(make_env, environment.ref)
    return PolicySource(
        name=policy.reference,
        settings={
            "policy": policy.name if PolicyRef.is_meant(name) else name,
            "policy_version": policy.version,
            "model": policy.model,
            "temperature": policy.decoding.temperature,
            # Defaults are left out, as in files written before these options existed.
            **policy.decoding.model_dump(include={"top_p", "top_k"}, exclude_defaults=True),
            "max_turn_tokens": policy.decoding.max_turn_tokens,
            "limits": policy.limits.model_dump(mode="json"),
            "system_prompt": policy.system_prompt,
            **({"template_variables": policy.template_variables} if policy.template_variables else {}),
        },
        play=lambda wanted: play_with_model(policy, environment.ref, make_env, wanted, policy.decoding),
        trained_in=policy.trained_in,
    )
