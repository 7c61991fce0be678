"""What is checked of a client-side environment before a job starts: a mistake costs a second, not a job."""

from __future__ import annotations

from tinkergym.core import refuse_unfinished
from tinkergym.errors import InvalidEnvironmentError, PromptTooLongError
from tinkergym.loop.agent_loop import AgentLoop
from tinkergym.loop.environment_host import AnyEnv, system_prompt_of
from tinkergym.loop.executors import made
from tinkergym.loop.host_pool import MakeEnv
from tinkergym.loop.plan import EpisodePlan
from tinkergym.loop.renderer import Renderer
from tinkergym.loop.trajectory import StopReason
from tinkergym.messages import NOT_IN_WORDS
from tinkergym.spec_errors import refuse_long_prompt
from tinkergym.wire import PlayedSpec, RendererBundle


def check_environment(make_env: MakeEnv, spec: PlayedSpec, bundle: RendererBundle) -> str | None:
    """Make the environment once, reset it and render its first prompt.

    Returns:
        The environment's own system prompt.

    Raises:
        InvalidEnvironmentError: it cannot be made or reset, or shows no text.
        PromptTooLongError: its first prompt leaves no room for an answer of `max_turn_tokens`.
    """
    env = made(make_env, spec.environment)
    try:
        refuse_unfinished(env)
        _check_first_prompt(env, spec, Renderer.from_bundle(bundle))
        return system_prompt_of(env)
    finally:
        env.close()


def _check_first_prompt(env: AnyEnv, spec: PlayedSpec, renderer: Renderer) -> None:
    try:
        observation, info = env.reset(seed=spec.seed)
    except Exception as failure:  # whatever a user's reset raises
        raise InvalidEnvironmentError(
            f"reset(seed={spec.seed}) fails: {type(failure).__name__}: {failure}",
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
        refuse_long_prompt(len(request.prompt_ids), spec, renderer.context_length)
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
        hint=NOT_IN_WORDS,
        field="environment",
    )
