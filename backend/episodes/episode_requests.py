"""Which episodes a train step plays: a pure function of the job's spec and the step's number.

So a resumed job, another worker and another placement request exactly the same episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from backend.episodes.league_book import LeagueBook
from backend.episodes.recorded_actions import RecordedActions
from backend.episodes.seat_players import Current, LeagueView, Past, SeatPlayer, bind, label_of
from backend.episodes.staleness import oldest_version
from tinkergym.schema.episodes import EpisodeRequest, SeatPlan, TablePlayer
from tinkergym.schema.fixed_players import Base, External, Frozen, PlayedAs, Replay, Scripted
from tinkergym.schema.ids import EpisodeId, JobRef, PolicyRef, policy_of
from tinkergym.schema.jobs.parts import Sampling
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.trajectory.trajectory import ONLY_AGENT

_SAMPLING = 1
"""Last word of the entropy for sampling seeds; environment seeds use none."""


SEAT_APART = 2**40
"""Distance between the sampling seeds of two seats."""


def step_requests(
    job_id: str,
    spec: PlayedSpec,
    step: int,
    league: LeagueView | None = None,
    *,
    recorded: RecordedActions | None = None,
) -> list[EpisodeRequest]:
    """Return the requests of train step `step` (the first is 1), in index order and not leased yet."""
    groups = range(spec.groups.count)
    return group_requests(job_id, spec, step, groups, league, recorded=recorded)


def group_requests(
    job_id: str,
    spec: PlayedSpec,
    step: int,
    groups: Iterable[int],
    league: LeagueView | None = None,
    *,
    recorded: RecordedActions | None = None,
) -> list[EpisodeRequest]:
    """Return the requests of some groups; numbers from `groups_per_step` on replace groups of the step.

    Args:
        job_id: The job.
        spec: Its settings.
        step: Train step.
        groups: Their numbers.
        league: What is known about opponents; None at a job's beginning.
        recorded: What other jobs' policies did, for seats that replay it.
    """
    requests: list[EpisodeRequest] = []
    group_size = spec.groups.size
    known = LeagueBook(spec).known(step) if league is None else league
    for group in groups:
        environment = spec.environment_at(step, group)
        players = bind(spec, step, group, known)
        for member in range(group_size):
            index = group * group_size + member
            seed = sampling_seed(spec.seed, step, group, member)
            requests.append(
                EpisodeRequest(
                    job_id=job_id,
                    episode_id=str(EpisodeId(JobRef(job_id), step, index)),
                    step=step,
                    index=index,
                    group=group,
                    environment=environment,
                    data_sha256=spec.data_sha256_of(environment),
                    seed=environment_seed(spec.seed, step, group),
                    seats=_replayed(_seats(job_id, spec, step, seed, players), step, index, recorded),
                    max_staleness=spec.versions_ahead,
                    limits=spec.limits,
                    executor=spec.executor,
                    retries=spec.retries,
                    group_size=group_size if spec.scored_by_group else 0,
                    lease_id="",
                    lease_seconds=0.0,
                )
            )
    return requests


def _replayed(
    seats: dict[str, SeatPlan], step: int, index: int, recorded: RecordedActions | None
) -> dict[str, SeatPlan]:
    """Give replaying seats their recorded actions."""
    for agent, seat in seats.items():
        if seat.table is not None and seat.table.kind == "replay":
            assert recorded is not None, "jobs with such seats are only played by their loop"
            actions = recorded.of(seat.table.name, step, index, agent)
            table = seat.table.model_copy(update={"actions": actions})
            seats = {**seats, agent: seat.model_copy(update={"table": table})}
    return seats


def _seats(
    job_id: str, spec: PlayedSpec, step: int, seed: int, players: Mapping[str, SeatPlayer]
) -> dict[str, SeatPlan]:
    """Return who plays each seat of an episode."""
    if not players:
        return {ONLY_AGENT: seat_plan(job_id, spec, Current(agent=""), seed, step=step)}
    return {
        # 63 bits each, far enough apart that no two turns of an episode share a seed.
        agent: seat_plan(job_id, spec, player, (seed + number * SEAT_APART) % 2**63, step=step)
        for number, (agent, player) in enumerate(players.items())
    }


def seat_plan(job_id: str, spec: PlayedSpec, player: SeatPlayer, seed: int, *, step: int) -> SeatPlan:
    """Return a seat of an episode with who plays it.

    Args:
        job_id: The job.
        spec: Its settings.
        player: Who plays.
        seed: Of the seat's first answer.
        step: Train step; it says which version a policy in training has.
    """
    policy, version, own, table, tools, trained = "", 0, spec, None, None, False
    renderer = spec.rendered_by(job_id)
    match player:
        case Current(agent=agent, trained=trained):
            renderer = spec.rendered_by(job_id, agent)
            policy, version = policy_of(job_id, agent), oldest_version(step, spec.versions_ahead)
            own, tools = spec.for_agent(agent), spec.tools_of(agent)
        case Past(agent=agent, version=version):
            renderer = spec.rendered_by(job_id, agent)
            policy = policy_of(job_id, agent, version=version)
            own, tools = spec.for_agent(agent), spec.tools_of(agent)
        case Frozen(policy=policy, played_as=played):
            frozen_at = PolicyRef.parse(policy).version
            assert frozen_at is not None, "it was resolved when the job was accepted"
            version = frozen_at
            if played is not None:
                own, renderer = _as_trained(spec, played), played.rendered_by
        case Base():
            policy = spec.model
        case Scripted(name=name):
            table = TablePlayer(kind="scripted", name=name)
        case External():
            prompt = spec.system_prompt if player.system_prompt is None else player.system_prompt
            asked = player.model_copy(update={"system_prompt": prompt})
            table = TablePlayer(kind="external", name=player.model, external=asked)
        case Replay(job=job):
            table = TablePlayer(kind="replay", name=job)
    return SeatPlan(
        policy=policy,
        policy_version=version,
        model=renderer,
        sampling_seed=seed,
        sampling=own.sampling,
        system_prompt=own.system_prompt,
        tools=tools,
        reasoning=own.reasoning,
        trained=trained,
        player=label_of(player),
        table=table,
    )


def _as_trained(spec: PlayedSpec, played: PlayedAs) -> PlayedSpec:
    """Return a job's settings for an opponent that plays as it was trained."""
    sampling = Sampling(temperature=played.temperature, max_turn_tokens=played.max_turn_tokens)
    own = {"sampling": sampling, "system_prompt": played.system_prompt, "reasoning": played.reasoning}
    return spec.model_copy(update=own)


def environment_seed(seed: int, step: int, group: int) -> int:
    """Return the seed for `env.reset`: 31 bits, because many environments use 32-bit generators."""
    return int(np.random.SeedSequence([seed, step, group]).generate_state(1)[0]) >> 1


def sampling_seed(seed: int, step: int, group: int, member: int) -> int:
    """Return the seed of an episode's first completion: 63 bits, so that adding the turn never overflows."""
    words = np.random.SeedSequence([seed, step, group, member, _SAMPLING]).generate_state(1, np.uint64)
    return int(words[0]) >> 1
