"""The episodes of a job's evaluations: held-out tasks, and who plays which seat."""

from __future__ import annotations

from backend.episodes.episode_requests import SEAT_APART, sampling_seed, seat_plan
from backend.jobs.job_context import JobContext
from tinkergym.schema.episodes import MOST_SEATS, EpisodeRequest, SeatPlan
from tinkergym.schema.evaluate_every import MOST_EPISODES, EvaluateEvery
from tinkergym.schema.fixed_players import Base
from tinkergym.schema.ids import EpisodeId, JobRef, policy_of
from tinkergym.schema.jobs.evaluated_spec import EvaluatedSpec
from tinkergym.schema.jobs.parts import Limits
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.trajectory.trajectory import ONLY_AGENT

_APART = MOST_EPISODES + MOST_SEATS
"""Difference between the episode numbers of two evaluations: the last mirrored set is always complete."""
EVALUATED = "evaluated"
"""The player of the evaluated seat."""


class EvaluationEpisodes:
    """What workers are asked to play for one job's evaluations."""

    def __init__(self, context: JobContext[EvaluatedSpec], board: JobRef) -> None:
        """Plan the episodes that are played from `board`."""
        self._context, self._board = context, board
        self._played: PlayedSpec | None = context.spec.played
        """How the job's own episodes are played; these are played the same way."""

    def requests(self, step: int, number: int) -> list[EpisodeRequest]:
        """Return the episodes of a step's version for the evaluation of this number."""
        context, spec, played = self._context, self._context.spec, self._played
        wanted = spec.evaluations[number]
        seats = len(self.seats_of(wanted))
        tasks = spec.tasks_of(wanted)
        # Whole mirrored sets only: what is missing draws its task by the seed.
        tasks += [None] * (-len(tasks) % seats)
        known = spec.evaluated_tasks.get(spec.name_of(wanted))
        return [
            EpisodeRequest(
                job_id=context.job_id,
                episode_id=str(EpisodeId(self._board, step, number * _APART + index)),
                step=step,
                index=index,
                group=number,
                environment=spec.environment_of(wanted),
                # Mirrored: one game per seat that the policy can take, all with one seed.
                seed=wanted.seed + index // seats,
                seats=self._seats(step, number, index),
                limits=played.limits if played else Limits(),
                executor=played.executor if played else "thread",
                retries=played.retries if played else 0,
                lease_id="",
                lease_seconds=0.0,
                task_index=task,
                data_sha256=known.sha256 if known else "",
            )
            for index, task in enumerate(tasks)
        ]

    def seats_of(self, wanted: EvaluateEvery) -> list[str]:
        """Return the agents that the evaluated policy plays in turn."""
        spec = self._context.spec
        if not spec.seats:
            return [ONLY_AGENT]
        own = spec.agent_of(wanted)
        return [agent for agent in spec.learning_seats if spec.policy_at(agent) == own]

    def _seats(self, step: int, number: int, index: int) -> dict[str, SeatPlan]:
        """Return who plays an episode: the policy, and in a game the opponent at all other seats."""
        context, spec = self._context, self._context.spec
        wanted = spec.evaluations[number]
        # The same at every step, so that only the versions differ.
        seed = sampling_seed(spec.seed, 0, number, index)
        if not spec.seats:
            return {ONLY_AGENT: self._own_seat(context.job_id, step, seed, wanted.temperature)}
        assert self._played, "a game is played"
        own, seats = spec.agent_of(wanted), self.seats_of(wanted)
        taken = seats[index % len(seats)]
        policy = policy_of(context.job_id, own)
        plan = self._own_seat(policy, step, seed, wanted.temperature, agent=own)
        return {
            agent: plan
            if agent == taken
            else self._other_seat(agent, step, (seed + SEAT_APART * (place + 1)) % 2**63, wanted)
            for place, agent in enumerate(spec.seats)
        }

    def _other_seat(self, agent: str, step: int, seed: int, wanted: EvaluateEvery) -> SeatPlan:
        """Return the opponent at a seat of a game; the roles of a program work together."""
        played, context = self._played, self._context
        assert played, "a game is played"
        if not (played.environment.is_program and agent in played.learning_seats):
            return seat_plan(context.job_id, played, wanted.against or Base(), seed, step=step)
        own = played.policy_at(agent)
        policy = policy_of(context.job_id, own)
        seat = self._own_seat(policy, step, seed, wanted.temperature, agent=own)
        return seat.model_copy(update={"player": f"trained@{step}"})

    def _own_seat(
        self, policy: str, step: int, seed: int, temperature: float, *, agent: str = ""
    ) -> SeatPlan:
        context = self._context
        spec = context.spec.for_agent(agent)
        played: PlayedSpec | None = spec.played
        return SeatPlan(
            policy=policy,
            policy_version=step,
            model=context.spec.rendered_by(context.job_id, agent),
            sampling_seed=seed,
            sampling=spec.sampling,
            temperature=temperature,
            system_prompt=played.system_prompt if played else None,
            tools=played.tools_of(agent) if played else None,
            reasoning=played.reasoning if played else "keep",
            trained=False,
            player=EVALUATED,
        )
