"""TrainGame: a script's own `agent_iter` loop over a PettingZoo game becomes a training job's rollout worker.

It connects the AEC interface with the coordinator. `TrainRemotely` creates one if it is given a game.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pettingzoo.utils import BaseWrapper

from tinkergym.agent.renderer import Renderer
from tinkergym.errors import EpisodeProtocolError, InvalidRequestError, PolicyVersionGoneError, TinkerGymError
from tinkergym.messages import Observation
from tinkergym.remote.client import Client
from tinkergym.remote.script_game import ScriptGame
from tinkergym.remote.script_job import ScriptJob
from tinkergym.remote.user_files import with_template_read
from tinkergym.rollout.environment_host import stop_reason_of, system_prompt_of
from tinkergym.rollout.seat_check import check_players, check_seats, players_offered
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.names import LOCAL
from tinkergym.schema.parsing import parse
from tinkergym.tasks.pinned import named_hash, refuse_other_data
from tinkergym.trajectory.trajectory import StopReason, Trajectory


class TrainGame(BaseWrapper):  # type: ignore[misc] # pettingzoo has no types here
    """Trains the policies of a game's seats on the games that a script plays, one at a time.

        env = TrainRemotely(game, agents={"x": tg.Train(), "o": tg.Train()}, steps=20)
        while env.training:
            env.reset()
            for agent in env.agent_iter():
                observation, reward, terminated, truncated, info = env.last()
                over = terminated or truncated
                env.step(None if over else env.act(agent, observation))
        env.close()

    `env.act` returns the action of the seat's player: a policy in training, a frozen one, or one of the
    game's own players. Training uses the text passed to `act` (which may describe an observation that is not
    text), the sampled tokens, and each agent's reward since its last action. The action passed to `step` may
    be derived from the policy's text.

    If a limit of the job ends the game, `agent_iter` ends and `env.stop_reason` names the limit. For the rest
    see `TrainRemotely`: seeds, games that are left early, `close`, and continuing a job by its id.
    """

    def __init__(
        self, env: Any, *, client: Client | None, job_id: str | None, settings: Mapping[str, Any]
    ) -> None:
        """Start the job, or continue the one named by `job_id`; `TrainRemotely` calls this.

        Raises:
            InvalidRequestError: A setting is invalid; nothing was started.
            InvalidEnvironmentError: The tasks are not those with which the job was started.
        """
        super().__init__(env)
        self._environment_prompt = system_prompt_of(env)
        self._client = client or Client()
        if job_id is None:
            self._spec = self._checked(settings)
            self.job = self._client.submit(self._spec)
        else:
            self.job = self._client.job(job_id)
            known = self.job.spec
            if not isinstance(known, RLSpec) or known.rollout != "script" or not known.plays_game:
                raise InvalidRequestError(
                    f"{job_id} does not train agents of a game in a script's own loop",
                    hint="take it up with Client.attach",
                    field="job_id",
                )
            check_seats(env, list(known.agents), known.environment.id)
            recorded = known.data_sha256_of(known.environment)
            refuse_other_data(env, recorded, known.environment.id, remember=False)
            self._spec = known
        transport = self._client.rollout_transport(self.job.id)
        self._renderer = cache(lambda model: Renderer.from_bundle(transport.renderer(model)))
        self._script: ScriptJob[ScriptGame] = ScriptJob(
            self.job,
            transport,
            client_timeout_seconds=self._spec.client_timeout_seconds,
            played="game",
            wraps="game",
            ended=self._ended,
        )
        self.stop_reason = ""
        """Why the last game ended, see `StopReason`; empty before that."""

    def _checked(self, settings: Mapping[str, Any]) -> RLSpec:
        """Return the job that the settings describe, after checking its seats against those of the game."""
        spec = parse(
            RLSpec,
            {
                "environment": {"id": _name_of(self.env)},
                **with_template_read(settings),
                "rollout": "script",
                "environment_prompt": self._environment_prompt,
                "environment_data": named_hash(_name_of(self.env), self.env),
            },
        )
        if not spec.plays_game:
            raise InvalidRequestError(
                "a game needs to be told who plays its agents",
                hint="agents={'ID': tg.Train(), ...}, or self_play=True",
                field="agents",
            )
        agents = list(spec.agents) or list(self.env.possible_agents)
        table = check_seats(self.env, agents, spec.environment.id)
        assert table is not None, "it has seats"
        check_players(table, spec.scripted_players())
        return spec.seated(table.agents, players_offered(table))

    @property
    def training(self) -> bool:
        """Whether the job needs another game; waits while the service computes a training step.

        Raises:
            JobFailedError: The job ended without success.
        """
        if self._script.closed:
            return False
        self._settle()
        return self._script.record is not None or self._script.wants_another()

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start the next game that the service requests, with its seed.

        Raises:
            EpisodeProtocolError: It is closed, or the job has completed its steps.
            InvalidRequestError: A seed was passed: the games of a group must start equal.
            JobFailedError: The job ended without success.
        """
        self._script.refuse_if_closed("reset")
        if seed is not None:
            raise InvalidRequestError(
                "reset() uses the service's seed, because compared games must start equal",
                hint="leave the seed out",
                field="seed",
            )
        self._settle()
        self._script.abandon()
        if not self.training:
            raise EpisodeProtocolError(
                f"{self.job.id} has done all of its steps",
                hint="`while env.training:` ends the loop here; job.policy(AGENT) is what was trained",
            )
        request = self._script.take()
        self._script.record = ScriptGame(request, self._renderer, self.env, self._environment_prompt)
        if request.task_index is not None:
            options = {**(options or {}), "task_index": request.task_index}
        self._script.run("reset", lambda: self.env.reset(seed=request.seed, options=options))
        self._hand_in_if_over()

    def act(self, agent: str, observation: Observation) -> str:
        """Answer an observation for the agent's player.

        Args:
            agent: The agent whose turn it is.
            observation: Text or messages for the observation that `last` returned.

        Returns:
            The text; "" if a limit of the job has ended the game, which then ends `agent_iter`.

        Raises:
            EpisodeProtocolError: It is not this agent's turn, or it has already answered.
            JobFailedError: The job ended without success.
        """
        self._script.raise_if_ended_badly()
        game = self._script.current("act")
        try:
            asked = game.hears(agent, observation)
        except TinkerGymError as error:
            if isinstance(error, EpisodeProtocolError):
                raise
            game.fail(stop_reason_of(error), traceback.format_exc())
            self._script.hand_in()
            raise
        if isinstance(asked, str):
            return asked
        if asked is None:
            self._hand_in_if_over()
            return ""
        try:
            return game.answers(self._client.ask(asked))
        except PolicyVersionGoneError as error:
            game.fail(StopReason.SAMPLING_FAILED, str(error))
            self._script.hand_in()
            return ""

    def step(self, action: Any) -> None:
        """Let the agent whose turn it is act; None for one whose game is over. Records the game's rewards.

        Raises:
            EpisodeProtocolError: The agent has not answered, or it is closed.
        """
        self._script.refuse_if_closed("step")
        self._script.raise_if_ended_badly()
        game = self._script.record
        if game is None:
            return  # a limit of the job ended the game, and `agent_iter` ends with this step
        agent = self.env.agent_selection
        dead = self.env.terminations[agent] or self.env.truncations[agent]
        if dead:
            game.leaves()
        else:
            game.expect_an_answer()
        self._script.run("step", lambda: self.env.step(action))
        if not dead:
            game.stepped()
        if not self.env.agents and not game.over:
            game.finish()
        self._hand_in_if_over()

    def agent_iter(self, max_iter: int = 2**63) -> Iterator[str]:
        """Yield the agent whose turn it is until the game is over, or a limit of the job has ended it."""
        for _ in range(max_iter):
            if self._script.record is None or not self.env.agents:
                return
            yield self.env.agent_selection

    def close(self) -> None:
        """Submit open results, wait for the current training step, and close the game."""
        if self._script.closed:
            return
        try:
            self._settle()
            self._script.abandon()
            self._script.warn_if_unfinished(stacklevel=2)
        finally:
            self._script.close()
            self.env.close()

    # --- inside ---

    def _settle(self) -> None:
        """Finish a game that is over for all agents, if its loop was left before stepping them all."""
        env = self.env
        while self._script.record is not None and env.agents:
            left = len(env.agents)
            if not all(env.terminations[agent] or env.truncations[agent] for agent in env.agents):
                return
            self.step(None)
            if len(env.agents) >= left:
                return

    def _hand_in_if_over(self) -> None:
        if self._script.record is not None and self._script.record.over:
            self._script.hand_in()

    def _ended(self, game: ScriptGame, records: list[Trajectory]) -> None:
        self.stop_reason = str(game.stop_reason or "")
        bad = next((one for one in records if not one.completed), None)
        if bad is not None:
            warnings.warn(f"the game ended with {bad.stop_reason}: {bad.error}", stacklevel=5)


def _name_of(env: Any) -> str:
    """Name a game; the service only receives the name."""
    return f"{LOCAL}{type(getattr(env.unwrapped, 'game', env.unwrapped)).__name__}-v0"
