"""Checks of a client-side environment before a job starts, so that a mistake fails within a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tinkergym.agent.agent_loop import AgentLoop
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.core import refuse_unfinished
from tinkergym.errors import InvalidEnvironmentError, PromptTooLongError, TinkerGymError
from tinkergym.messages import NOT_IN_WORDS, messages_to_answer
from tinkergym.rollout.environment_host import AnyEnv, system_prompt_of, template_variables_of
from tinkergym.rollout.executors import made
from tinkergym.rollout.game_table import GameTable
from tinkergym.rollout.host_pool import MakeEnv
from tinkergym.rollout.seat_check import (
    check_players,
    check_seats,
    first_standing,
    game_of,
    players_offered,
)
from tinkergym.rubrics.group import score_group_of
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.views import RendererBundle
from tinkergym.tasks.pinned import named_hash
from tinkergym.trajectory.trajectory import StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Facts about an environment from its first reset."""

    system_prompt: str | None
    """The environment's own system prompt."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """The template variables that its class sets."""
    pays_groups: bool = False
    """Whether it scores the episodes of a group together."""
    agents: tuple[str, ...] = ()
    """All agents of a game."""
    offered: tuple[str, ...] = ()
    """Names of the players that a game offers."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Hashes of the tasks of environments that draw from a dataset, by name."""


def check_environments(make_env: MakeEnv, spec: PlayedSpec, bundle: RendererBundle) -> Seen:
    """Check each of a job's environments, as `check_environment` does.

    Returns:
        For several, their system prompt if it is the same. Several environments cannot be games.
    """
    own = {
        name: check_environment(
            make_env, spec.model_copy(update={"environment": environment, "environments": []}), bundle
        )
        for name, environment in spec.own_environments.items()
    }
    found = list(own.values())
    prompts = {one.system_prompt for one in found}
    return replace(
        found[0],
        data={name: sha256 for name, one in own.items() for sha256 in one.data.values()},
        system_prompt=prompts.pop() if len(prompts) == 1 else None,
        variables=found[0].variables if all(one.variables == found[0].variables for one in found) else {},
        pays_groups=any(one.pays_groups for one in found),
    )


def check_environment(make_env: MakeEnv, spec: PlayedSpec, bundle: RendererBundle) -> Seen:
    """Create the environment once, reset it and render its first prompt.

    Raises:
        InvalidEnvironmentError: It cannot be created or reset, or shows no text.
        PromptTooLongError: Its first prompt leaves no room for a completion of `max_turn_tokens`.
    """
    env = made(make_env, spec.environment)
    try:
        table = _table_of(env, spec)
        if table is None:
            refuse_unfinished(env)
        for agent, own in spec.shown_first().items():
            try:
                _check_first_prompt(env if table is None else table, own, Renderer.from_bundle(bundle))
            except PromptTooLongError as error:
                if agent:
                    error.field = f"agents.{agent}"
                raise
        prompt, variables = system_prompt_of(env), template_variables_of(env)
        if table is None:
            return Seen(
                system_prompt=prompt,
                variables=variables,
                pays_groups=score_group_of(env) is not None,
                data=named_hash(spec.environment.id, env),
            )
        offered = tuple(players_offered(table))
        return Seen(system_prompt=prompt, variables=variables, agents=table.agents, offered=offered)
    finally:
        env.close()


def _table_of(env: AnyEnv, spec: PlayedSpec) -> GameTable | None:
    """Return the game as a table with its seats checked; None for an environment with one agent."""
    if spec.plays_game and not spec.seats:
        table: GameTable | None = game_of(env, spec.environment.id)
    else:
        table = check_seats(env, list(spec.seats), spec.environment.id)
    if table is not None:
        check_players(table, spec.scripted_players())
    return table


def _check_first_prompt(env: AnyEnv | GameTable, spec: PlayedSpec, renderer: Renderer) -> None:
    try:
        observation, info = _reset(env, spec)
    except TinkerGymError as failure:
        raise InvalidEnvironmentError(
            f"reset(seed={spec.seed}) failed: {failure.message}", hint=failure.hint, field="environment"
        ) from failure
    except Exception as failure:  # A user's reset may raise anything.
        raise InvalidEnvironmentError(
            f"reset(seed={spec.seed}) failed: {type(failure).__name__}: {failure}",
            hint="reset takes seed= and options= and returns (observation, info)",
            field="environment",
        ) from failure
    plan = EpisodePlan(
        episode_id="preflight",
        seed=spec.seed,
        policy=spec.model,
        limits=spec.limits,
        system_prompt=spec.system_prompt,
    )
    loop = AgentLoop(renderer, plan)
    request = loop.begin(observation, info, environment_prompt=system_prompt_of(env))
    if request is not None:
        spec.require_room(len(request.prompt_ids), renderer.context_length)
        return
    error = loop.trajectory().error
    if loop.stop_reason is StopReason.CONTEXT_LIMIT:
        raise PromptTooLongError(
            f"the first prompt is too long: {error}",
            hint="shorten the observation or the system prompt, or choose a model with a longer context",
            field="environment",
        )
    raise InvalidEnvironmentError(
        f"the first observation cannot be used: {error}",
        # If it has words, the error itself says what to do: about an image for a model without vision, say.
        hint="" if _is_in_words(observation) else NOT_IN_WORDS,
        field="environment",
    )


def _is_in_words(observation: object) -> bool:
    try:
        messages_to_answer(observation)
    except (TypeError, ValueError):
        return False
    return True


def _reset(env: AnyEnv | GameTable, spec: PlayedSpec) -> tuple[object, object]:
    if isinstance(env, GameTable):
        turn = first_standing(env, spec.seed, spec.environment.id)
        return turn.observation, turn.info
    return env.reset(seed=spec.seed)
