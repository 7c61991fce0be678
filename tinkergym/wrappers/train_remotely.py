"""TrainRemotely: a script's own `reset`/`step` loop becomes a training job's rollout worker.

Uses the Gymnasium interface and the agent loop. Tokens stay in the loop, and HTTP in `tinkergym.remote`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from typing import Any, SupportsFloat

import gymnasium as gym

from tinkergym.agent.renderer import Renderer
from tinkergym.algorithms import GRPO
from tinkergym.errors import InvalidRequestError, PolicyVersionGoneError
from tinkergym.messages import Observation
from tinkergym.remote.client import Client
from tinkergym.remote.job import Job
from tinkergym.remote.script_episode import ScriptEpisode
from tinkergym.remote.script_job import ScriptJob
from tinkergym.remote.user_files import with_template_read
from tinkergym.rollout.environment_host import system_prompt_of, template_variables_of
from tinkergym.rollout.group_scores import refuse_group_rewards
from tinkergym.schema.jobs.parts import Adapter, LoRA
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.names import LOCAL
from tinkergym.schema.parsing import parse, refuse_recorded
from tinkergym.schema.policy_gradient import PolicyGradient
from tinkergym.tasks.pinned import named_hash, refuse_other_data
from tinkergym.trajectory.trajectory import StopReason

DEFAULT_STEPS = 100
"""A script's own loop often ends early; the job then stays and can be continued."""

StepReturn = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]


class TrainRemotely(gym.Wrapper[Any, Any, Any, Any]):
    """Trains a policy on the episodes that a script plays in this environment, one at a time.

        env = TrainRemotely(MyEnv(), model="nano", algorithm=GRPO(group_size=4), steps=20)
        while env.training:
            observation, info = env.reset()
            over = False
            while not over:
                action = env.policy.act(observation)
                observation, reward, terminated, truncated, info = env.step(action)
                over = terminated or truncated
        env.close()

    Training uses the text given to `act` (which may describe an observation that is not text), the sampled
    tokens, and the reward from `step`. The action given to `step` may be derived from the policy's text, as
    in `env.step(int(text))`.

    `env.training` waits until the service has another episode, and is False once the job's steps are done. A
    loop that continues after that plays with the trained policy without recording, and gets one warning.

    `reset()` uses the service's seed, so that the episodes of a group start equal; the script's own seed is
    refused unless `baseline="batch"`. A `reset` in the middle of an episode abandons it. When a limit of the
    job cuts the episode off, `step` returns `truncated=True` and names the limit under `info["tinkergym"]`.
    If the limit is reached while reading an observation, `act` returns "" and the next `step` reports it
    without calling the environment. Time limits are checked between calls, because the script's own thread
    cannot be interrupted.

    `close()` waits for the current training step. If the job then still needs episodes it stays, and
    `TrainRemotely(env, job_id=...)` continues it.

    For a PettingZoo AEC game the script loops over `env.agent_iter()`, see `TrainGame`.
    """

    _warned = False
    """Whether the script was told that it plays on after the end of training."""

    def __new__(cls, env: Any, **settings: Any) -> Any:
        """Create a `TrainGame` for a game."""
        if not hasattr(env, "agent_iter"):
            return super().__new__(cls)
        # Here, so pettingzoo is only imported for games.
        from tinkergym.wrappers.train_game import TrainGame

        given = {name: value for name, value in settings.items() if value is not None}
        client, job_id = given.pop("client", None), given.pop("job_id", None)
        _refuse_impossible(set(given), job_id, given)
        defaults = {"model": "nano", "steps": DEFAULT_STEPS, "algorithm": GRPO(), "adapter": LoRA()}
        return TrainGame(env, client=client, job_id=job_id, settings={**defaults, **given})

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        steps: int | None = None,
        client: Client | None = None,
        model: str = "nano",
        algorithm: PolicyGradient | Mapping[str, Any] | None = None,
        adapter: Adapter | Mapping[str, Any] | None = None,
        job_id: str | None = None,
        **settings: Any,
    ) -> None:
        """Start the job, or continue the one named by `job_id`.

        Args:
            env: Any Gymnasium environment.
            steps: Train steps; each takes `group_size * groups_per_step` episodes. None means
                100 for a new job.
            client: None creates one, see `Client`.
            model: A model name of the service, a model directory on its machine, or a hub id.
            algorithm: How the policy learns: `GRPO(...)`, `RLOO(...)`, ...; None means `GRPO()`.
            adapter: `LoRA(...)` or `FullParameters()`; None means `LoRA()`.
            job_id: Continue a job that an earlier script left. It keeps its settings, and passing others is
                refused.
            **settings: Any other field of `RLSpec`.

        Raises:
            InvalidRequestError: A setting is invalid; nothing was started.
            InvalidEnvironmentError: The tasks are not those with which the job was started.
        """
        super().__init__(env)
        given = {"steps": steps, "algorithm": algorithm, "adapter": adapter, **settings}
        _refuse_impossible({name for name, value in given.items() if value is not None}, job_id, settings)
        refuse_group_rewards(env, "a loop of your own plays episodes one by one")
        self._environment_prompt = system_prompt_of(env)
        self._client = client or Client()
        if job_id is not None:
            self.job = self._client.job(job_id)
            self._spec = _spec_to_continue(self.job)
            recorded = self._spec.data_sha256_of(self._spec.environment)
            refuse_other_data(env, recorded, self._spec.environment.id, remember=False)
        else:
            adapter, settings = self._client.beginning(model, adapter, settings)
            self._spec = parse(
                RLSpec,
                {
                    "environment": _environment_of(env),
                    "model": model,
                    "algorithm": GRPO() if algorithm is None else algorithm,
                    "adapter": adapter,
                    "steps": DEFAULT_STEPS if steps is None else steps,
                    **with_template_read(settings),
                    "rollout": "script",
                    "environment_prompt": self._environment_prompt,
                    "environment_variables": template_variables_of(env),
                    "environment_data": named_hash(_environment_of(env)["id"], env),
                },
            )
            self.job = self._client.submit(self._spec)
            self._spec = _spec_to_continue(self.job)
        self.policy = ScriptPolicy(self)
        """Acts on observations; its actions are what the job trains on."""
        transport = self._client.rollout_transport(self.job.id)
        self._renderer = Renderer.from_bundle(transport.renderer(self._spec.rendered_by(self.job.id)))
        self._script: ScriptJob[ScriptEpisode] = ScriptJob(
            self.job,
            transport,
            client_timeout_seconds=self._spec.client_timeout_seconds,
            played="episode",
            wraps="env",
        )
        self._info: Any = None
        """What the last `reset` returned with its observation."""
        trained = self.job.policy()
        trained.environment_prompt = self._environment_prompt
        self._trained = trained.chat()

    @property
    def training(self) -> bool:
        """Whether the job needs another episode; waits while the service computes a train step.

        Raises:
            JobFailedError: The job failed.
        """
        if self._script.closed:
            return False
        return self._script.record is not None or self._script.wants_another()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode that the service requests, with its seed.

        Raises:
            EpisodeProtocolError: It is closed.
            InvalidRequestError: A seed was given, but the episodes of a group must start equal.
            JobFailedError: The job failed.
        """
        self._script.refuse_if_closed("reset")
        if seed is not None and self._spec.algorithm.compares_siblings and not self._script.done:
            raise InvalidRequestError(
                "reset() uses the service's seed, because the episodes of a group must start equal",
                hint="leave out the seed, or train with GRPO(baseline='batch')",
                field="seed",
            )
        self._script.abandon()
        if not self.training:
            return self._reset_after_the_job(seed, options)
        request = self._script.take()
        episode = self._script.record = ScriptEpisode(request, self._renderer, self._environment_prompt)
        if request.task_index is not None:
            options = {**(options or {}), "task_index": request.task_index}
        seed = request.seed if seed is None else seed

        def begin() -> tuple[Any, dict[str, Any]]:
            episode.observation, self._info = self.env.reset(seed=seed, options=options)
            return episode.observation, self._info

        return self._script.run("reset", begin)

    def step(self, action: Any) -> StepReturn:
        """Apply the policy's action to the environment and record its reward.

        Raises:
            EpisodeProtocolError: The policy has not acted, or it is closed.
        """
        self._script.refuse_if_closed("step")
        if self._script.done:
            return self.env.step(action)
        self._script.raise_if_ended_badly()
        episode = self._script.current("step")
        if episode.over:  # A limit was reached in reset(), or while act() read the observation.
            return episode.observation, 0.0, False, True, self._end({})
        episode.expect_an_answer()

        def act() -> StepReturn:
            observation, reward, terminated, truncated, info = self.env.step(action)
            return observation, reward, terminated, truncated, info

        observation, reward, terminated, truncated, info = self._script.run("step", act)
        if not episode.over:
            episode.stepped(observation, reward, terminated, truncated, info)
        if not episode.over:
            return observation, reward, terminated, truncated, info
        return observation, reward, terminated, truncated or not terminated, self._end(info)

    def close(self) -> None:
        """Submit finished episodes, wait for the running train step, and close the environment."""
        if self._script.closed:
            return
        try:
            self._script.abandon()
            self._script.warn_if_unfinished(stacklevel=2)
        finally:
            self._script.close()
            self.env.close()

    # --- what the policy needs ---

    def _act(self, observation: Observation) -> str:
        if self._script.done:
            return self._trained.act(observation)
        self._script.raise_if_ended_badly()
        episode = self._script.current("act")
        request = episode.hears(observation, self._info)
        if request is None:
            return ""
        try:
            completion = self._client.ask(request)
        except PolicyVersionGoneError as error:
            episode.fail(StopReason.SAMPLING_FAILED, str(error))
            return ""
        return episode.answers(completion)

    # --- inside ---

    def _end(self, info: dict[str, Any]) -> dict[str, Any]:
        (trajectory,) = self._script.hand_in()
        if not trajectory.completed:
            warnings.warn(
                f"the episode ended with {trajectory.stop_reason}: {trajectory.error}", stacklevel=3
            )
        return {**info, "tinkergym": {"stop_reason": str(trajectory.stop_reason)}}

    def _reset_after_the_job(
        self, seed: int | None, options: dict[str, Any] | None
    ) -> tuple[Any, dict[str, Any]]:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.job.id} has done all of its steps: from here on the trained policy plays without "
                f"recording; `while env.training:` ends the loop here",
                stacklevel=3,
            )
        self._trained.reset()
        return self.env.reset(seed=seed, options=options)


class ScriptPolicy:
    """The policy in training, for a script's loop."""

    def __init__(self, env: TrainRemotely) -> None:
        self._env = env

    def act(self, observation: Observation) -> str:
        """Act on an observation of the running episode.

        Args:
            observation: Text or messages that describe what `reset` or `step` returned.

        Returns:
            The policy's text; "" if a limit of the job has ended the episode, which `step` then reports.

        Raises:
            EpisodeProtocolError: Called before `reset`, or twice without a `step` in between.
            JobFailedError: The job failed.
        """
        return self._env._act(observation)


def _refuse_impossible(given: set[str], job_id: str | None, settings: Mapping[str, Any]) -> None:
    if job_id is not None and given:
        raise InvalidRequestError(
            f"{job_id} already has its settings, so {', '.join(sorted(given))} would have no effect",
            hint="leave them out, or start a new job without job_id",
            field=min(given),
        )
    refuse_recorded(settings)
    if settings.get("rollout", "script") != "script":
        raise InvalidRequestError(
            f"this wrapper's episodes are played by your own loop, not by {settings['rollout']!r}",
            hint="leave out rollout, or pass the environment to Client.train",
            field="rollout",
        )


def _spec_to_continue(job: Job) -> RLSpec:
    spec = job.spec
    if isinstance(spec, RLSpec) and spec.rollout == "script":
        return spec
    how = f"has rollout={spec.played_by!r}" if spec.played else "plays no episodes"
    raise InvalidRequestError(
        f"{job.id} {how}, so a script's own loop cannot continue it",
        hint="use Client.attach",
        field="job_id",
    )


def _environment_of(env: gym.Env[Any, Any]) -> dict[str, Any]:
    """Name the environment as its constructor does; arguments that are not JSON are left out."""
    if env.spec is None:
        return {"id": f"{LOCAL}{type(env.unwrapped).__name__}-v0"}
    kwargs = {key: value for key, value in env.spec.kwargs.items() if _is_json(value)}
    return {"id": env.spec.id, "kwargs": kwargs}


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
