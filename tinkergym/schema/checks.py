"""Checks that need more than one model: arguments of scripts, and a job together with its model or data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from tinkergym.errors import InvalidRequestError, PromptTooLongError
from tinkergym.schema.jobs.common import PlayedSpec
from tinkergym.schema.jobs.dataset import DatasetSpec
from tinkergym.schema.jobs.rl import RLSpec

Played = TypeVar("Played", bound=PlayedSpec)


def refuse_environment_prompt(settings: Mapping[str, Any]) -> None:
    """Refuse settings that are read from the environment and cannot be chosen.

    Raises:
        InvalidRequestError: One of them is set.
    """
    if "environment_prompt" in settings:
        raise InvalidRequestError(
            "is read from the environment and cannot be set",
            hint="set system_prompt, which replaces the environment's",
            field="environment_prompt",
        )
    if "environment_data" in settings:
        raise InvalidRequestError(
            "is read from the environment and cannot be set", hint="leave it out", field="environment_data"
        )
    if "group_rewards" in settings:
        raise InvalidRequestError(
            "it is read from the environment",
            hint="give the environment a method score_group(members)",
            field="group_rewards",
        )


def with_group_rewards(spec: Played, *, pays_groups: bool) -> Played:
    """Return the job with a note of whether its environment scores groups together.

    Raises:
        InvalidRequestError: It does, but the job has no groups.
    """
    if not isinstance(spec, RLSpec):
        return spec
    if pays_groups and spec.algorithm.group_size < 2:
        raise InvalidRequestError(
            "the environment scores the episodes of a group together (score_group), but groups have only one",
            hint="raise algorithm.group_size",
            field="algorithm.group_size",
        )
    if pays_groups and spec.deterministic:
        raise InvalidRequestError(
            "the environment scores the episodes of a group together (score_group), and those waiting for "
            "their group would block the others, which deterministic=True samples in lockstep",
            hint="leave deterministic out, or pay each episode by itself",
            field="deterministic",
        )
    return spec.model_copy(update={"group_rewards": pays_groups})


def require_count(value: object, name: str) -> None:
    """Check a count given by a script, which must be above 0.

    Raises:
        InvalidRequestError: It is not a whole number above 0.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidRequestError(f"must be a whole number above 0, not {value!r:.80}", field=name)


def refuse_wide_context(spec: PlayedSpec, context_length: int) -> None:
    """Check that a job does not ask for more context than its model has.

    Raises:
        InvalidRequestError: It does.
    """
    most = spec.limits.max_context_tokens
    if most is not None and most > context_length:
        raise InvalidRequestError(
            f"the model {spec.model!r} has a context of {context_length} tokens, not {most}",
            hint="leave it out to use all of them, or choose a model with a longer context",
            field="limits.max_context_tokens",
        )


def nothing_left(spec: DatasetSpec, records: int) -> InvalidRequestError:
    """Return an error for a job that holds out all of its records."""
    return InvalidRequestError(
        f"{spec.held_out:g} of {records} {'record' if records == 1 else 'records'} would leave none to "
        f"train on",
        hint="lower it, or use eval_data",
        field="held_out",
    )


def refuse_long_prompt(prompt_tokens: int, spec: PlayedSpec, context_length: int) -> None:
    """Check that the first prompt leaves room for the longest completion that the job allows.

    Raises:
        PromptTooLongError: It does not.
    """
    needed = prompt_tokens + spec.sampling.max_turn_tokens
    wants = f"a first prompt of {prompt_tokens} tokens and an answer of up to {spec.sampling.max_turn_tokens}"
    if needed > context_length:
        raise PromptTooLongError(
            f"{wants} exceed the context of {context_length} tokens of {spec.model!r}",
            hint="lower max_turn_tokens, shorten the prompt, or choose a model with a longer context",
            field="sampling.max_turn_tokens",
        )
    if needed > (spec.limits.max_context_tokens or needed):
        raise PromptTooLongError(
            f"{wants} exceed limits.max_context_tokens={spec.limits.max_context_tokens}",
            hint=f"set it to {needed} or more, lower max_turn_tokens, or shorten the prompt",
            field="limits.max_context_tokens",
        )


def shown_first(spec: PlayedSpec) -> dict[str, PlayedSpec]:
    """Return the job's settings and, by agent, those of each seat with its own prompt, sampling or model.

    Each can then be checked for whether its first prompt and a completion fit. The job itself is under "".
    """
    agents = spec.trained_agents if spec.seats else ()
    own = {agent: spec.for_agent(agent) for agent in agents}
    return {"": spec} | {
        agent: one
        for agent, one in own.items()
        if (one.system_prompt, one.sampling, one.model) != (spec.system_prompt, spec.sampling, spec.model)
    }
