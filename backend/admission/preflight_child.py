"""`python -m backend.admission.preflight_child`: create and reset an environment, measure its first prompt.

The question comes on stdin, the answer goes to stdout, both as JSON; what the environment prints, to stderr.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

from backend.processes.children import one_question
from tinkergym.agent.environment_values import variables_in
from tinkergym.agent.image_placeholders import hashes_of
from tinkergym.agent.renderer import Renderer
from tinkergym.agent.tool_turns import offered_tools, require_calls_readable
from tinkergym.core import refuse_unfinished
from tinkergym.errors import (
    InvalidEnvironmentError,
    InvalidImageError,
    TinkerGymError,
    UnsupportedPartError,
)
from tinkergym.messages import NOT_IN_WORDS, messages_to_answer, opening_messages
from tinkergym.registration.environments import make_environment, pack_of
from tinkergym.registration.games import make_playable
from tinkergym.rollout.environment_host import system_prompt_of, template_variables_of
from tinkergym.rollout.seat_check import (
    check_players,
    check_seats,
    first_standing,
    game_of,
    players_offered,
)
from tinkergym.rubrics.group import score_group_of
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.views import RendererBundle
from tinkergym.tasks.overlap import overlap_of
from tinkergym.tasks.pinned import named_hash

_SEEDS = (0, 1, 2, 3)
"""First prompts differ in length; the longest of this many counts."""
_TRACEBACK = 2000
_HASH_SECONDS = 3.0
"""How long the tasks of an environment are read for their hash. The whole check has a time limit."""


def examine(
    reference: EnvironmentRef,
    bundle: RendererBundle,
    system_prompt: str | None,
    agents: Sequence[str] = (),
    *,
    self_play: bool = False,
    scripted: Sequence[tuple[str, str]] = (),
    trained: Sequence[EnvironmentRef] = (),
) -> dict[str, Any]:
    """Return the longest first prompt's tokens and images, the pack's version, and the system prompt.

    For a game, also its agents and its players; for an evaluation, its tasks.

    Raises:
        InvalidRequestError: `agents` are not those of the game, or the game lacks one of the players.
        UnknownEnvironmentError: The environment is no longer installed.
        InvalidEnvironmentError: It cannot be created or reset, or its observation is not text.
    """
    env = make_playable(reference) if agents or self_play else make_environment(reference)
    table = check_seats(env, agents, reference.id) if agents or not self_play else game_of(env, reference.id)
    if table is None:
        refuse_unfinished(env)
    else:
        check_players(table, scripted)
    renderer = Renderer.from_bundle(bundle)
    longest = most_images = 0
    environment_prompt = None
    for seed in _SEEDS:
        try:
            if table is None:
                observation, info = env.reset(seed=seed)
            else:
                first = first_standing(table, seed, reference.id)
                observation, info = first.observation, first.info
            environment_prompt = system_prompt_of(env)
        except Exception as error:
            raise _failed_reset(error, seed, reference.id) from error
        try:
            shown = renderer.with_tools((), {**variables_in(info), **renderer.template_variables})
            tokens, images = _first_prompt(shown, observation, system_prompt, environment_prompt)
            longest, most_images = max(longest, tokens), max(most_images, images)
        except (InvalidImageError, UnsupportedPartError) as error:
            raise type(error)(
                f"{reference.id}: {error.message}", hint=error.hint, field="environment"
            ) from error
        except (TypeError, ValueError) as error:
            raise InvalidEnvironmentError(
                f"the observation of {reference.id} cannot be rendered for a language model: {error}",
                hint=NOT_IN_WORDS,
                field="environment",
            ) from error
    data = {} if table is not None else named_hash(reference.id, env, seconds=_HASH_SECONDS)
    tasks = _tasks(env, trained) if table is None else {}
    env.close()
    pack = pack_of(reference.id)
    return {
        "prompt_tokens": longest,
        "prompt_images": most_images,
        "packs": {pack.name: pack.version} if pack else {},
        "environment_prompt": environment_prompt,
        "environment_variables": template_variables_of(env),
        "data": data,
        **tasks,
        "group_rewards": table is None and score_group_of(env) is not None,
        "agents": [] if table is None else list(table.agents),
        "offered": [] if table is None else players_offered(table),
    }


def _tasks(env: Any, trained: Sequence[EnvironmentRef]) -> dict[str, Any]:
    """Return how many tasks an environment has, and how many of them are those of training."""
    with ExitStack() as stack:
        others = [stack.enter_context(closing(make_environment(one))) for one in trained]
        seen = overlap_of(env, others, seconds=_HASH_SECONDS)
    if seen is None:
        return {}
    return {"tasks": seen.tasks, "trained_on": seen.trained_on, "tasks_sha256": seen.sha256}


def _failed_reset(error: Exception, seed: int, env_id: str) -> InvalidEnvironmentError:
    """Return what is said of an environment whose `reset` raised."""
    if isinstance(error, TinkerGymError):
        # Written for its user already, such as that a dataset lacks a column.
        story, hint = error.message, error.hint
    else:
        story = traceback.format_exc()[-_TRACEBACK:].strip()
        hint = f"fix this first: {type(error).__name__}"
    return InvalidEnvironmentError(
        f"reset(seed={seed}) of {env_id} failed: {story}", hint=hint, field="environment"
    )


def _first_prompt(
    renderer: Renderer, observation: Any, system_prompt: str | None, environment_prompt: str | None
) -> tuple[int, int]:
    """Return how many tokens and images the policy would see."""
    shown, tools = offered_tools(messages_to_answer(observation))
    if tools:
        renderer = renderer.with_tools(tools)
        require_calls_readable(renderer)
    messages = opening_messages(shown, job_prompt=system_prompt, environment_prompt=environment_prompt)
    return len(renderer.start(messages)), len(hashes_of(messages))


def main() -> None:
    """Answer one request."""
    with one_question() as (question, answers):
        try:
            answer = examine(
                EnvironmentRef.model_validate(question["environment"]),
                RendererBundle.model_validate(question["bundle"]),
                question["system_prompt"],
                question["agents"],
                self_play=question["self_play"],
                scripted=question["scripted"],
                trained=[EnvironmentRef.model_validate(one) for one in question["trained"]],
            )
        except TinkerGymError as error:
            if not error.field:
                error.field = "environment"
            answer = {"error": error.to_wire()}
        json.dump(answer, answers)


if __name__ == "__main__":
    main()
