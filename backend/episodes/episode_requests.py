"""Which episodes a train step plays: a pure function of the job's spec and the step's number.

So a resumed job, another worker and another placement ask for exactly the same episodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np

from backend.episodes.staleness import oldest_version
from tinkergym.schema.episodes import EpisodeRequest, SeatPlan
from tinkergym.schema.job_spec import JobSpec, SharedWith, Train
from tinkergym.schema.policy_refs import policy_of
from tinkergym.trajectory.trajectory import ONLY_AGENT

_SAMPLING = 1
"""Last word of the entropy that sampling seeds are drawn from; environment seeds use none."""


_SEAT_APART = 2**40
"""Between the sampling seeds of two seats."""


def episode_id(job_id: str, step: int, index: int) -> str:
    """Return the id under which this episode counts, however often it is issued."""
    return f"{job_id}:{step}:{index}"


def step_requests(job_id: str, spec: JobSpec, step: int) -> list[EpisodeRequest]:
    """Return the requests of train step `step` (the first is 1), in index order and not leased yet."""
    return group_requests(job_id, spec, step, range(spec.algorithm.groups_per_step))


def group_requests(job_id: str, spec: JobSpec, step: int, groups: Iterable[int]) -> list[EpisodeRequest]:
    """Return the requests of some groups; numbers past `groups_per_step` replace groups of the step."""
    requests: list[EpisodeRequest] = []
    group_size = spec.algorithm.group_size
    for group, member in itertools.product(groups, range(group_size)):
        index = group * group_size + member
        requests.append(
            EpisodeRequest(
                job_id=job_id,
                episode_id=episode_id(job_id, step, index),
                step=step,
                index=index,
                group=group,
                environment=spec.environment_at(step, group),
                seed=environment_seed(spec.seed, step, group),
                seats=_seats(job_id, spec, step, sampling_seed(spec.seed, step, group, member)),
                max_staleness=spec.max_staleness,
                limits=spec.limits,
                executor=spec.executor,
                retries=spec.retries,
                lease_id="",
                lease_seconds=0.0,
            )
        )
    return requests


def _seats(job_id: str, spec: JobSpec, step: int, seed: int) -> dict[str, SeatPlan]:
    """Return who plays each seat of an episode."""
    common = {
        "policy_version": oldest_version(step, spec.max_staleness),
        "model": spec.model,
        "sampling": spec.sampling,
        "reasoning": spec.reasoning,
    }
    if not spec.agents:
        prompt = spec.system_prompt
        return {ONLY_AGENT: SeatPlan(policy=job_id, sampling_seed=seed, system_prompt=prompt, **common)}
    seats: dict[str, SeatPlan] = {}
    for number, (agent, settings) in enumerate(spec.agents.items()):
        trained = settings.agent if isinstance(settings, SharedWith) else agent
        whose = spec.agents[trained]
        prompt = whose.system_prompt if isinstance(whose, Train) else None
        seats[agent] = SeatPlan(
            policy=policy_of(job_id, trained),
            # 63 bits each, far enough apart that no two turns of an episode share a seed.
            sampling_seed=(seed + number * _SEAT_APART) % 2**63,
            system_prompt=spec.system_prompt if prompt is None else prompt,
            **common,
        )
    return seats


def environment_seed(seed: int, step: int, group: int) -> int:
    """Return the seed for `env.reset`: 31 bits, since many environments hand it to 32-bit generators."""
    return int(np.random.SeedSequence([seed, step, group]).generate_state(1)[0]) >> 1


def sampling_seed(seed: int, step: int, group: int, member: int) -> int:
    """Return the seed of an episode's first answer: 63 bits, so that adding the turn never overflows."""
    words = np.random.SeedSequence([seed, step, group, member, _SAMPLING]).generate_state(1, np.uint64)
    return int(words[0]) >> 1
