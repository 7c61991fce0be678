"""Episodes with known rewards, and the batch that a job makes of them."""

from __future__ import annotations

import numpy as np

from backend.episodes.episode_requests import step_requests
from backend.jobs.train_batch import train_batch
from tinkergym.algorithms import GRPO
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.jobs.parts import EnvironmentRef, Sampling
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.trajectory.trajectory import Segment, StopReason, Trajectory, Turn


def never(sequences):
    raise AssertionError("it costs a forward pass, and nobody asked for it")


def episode(*turns, stop=StopReason.TERMINATED):
    """Turns are (reward, answer's tokens, finish reason), each behind a prompt of two tokens."""
    ids, mask, logprobs, records = [], [], [], []
    for number, (reward, tokens, finish) in enumerate(turns):
        ids += [1, 2] + [10 + number] * tokens
        mask += [False] * 2 + [True] * tokens
        logprobs += [None] * 2 + [-1.0 - 0.1 * k for k in range(tokens)]
        records.append(
            Turn(
                segment=0,
                start=len(ids) - tokens,
                end=len(ids),
                policy_version=0,
                finish_reason=finish,
                observation="o",
                action="a",
                reward=reward,
            )
        )
    return Trajectory(
        segments=[Segment(token_ids=ids, loss_mask=mask, sampling_logprobs=logprobs)],
        turns=records,
        terminated=True,
        truncated=False,
        stop_reason=stop,
        seed=0,
    )


def batch(*trajectories, algorithm=None, reference=None, values=None, **settings):
    spec = job(algorithm or GRPO(group_size=len(trajectories), groups_per_step=1), **settings)
    played = [
        (request, EpisodeResult(episode_id=request.episode_id, lease_id="l", trajectories=[trajectory]))
        for request, trajectory in zip(step_requests("job-1", spec, 1), trajectories, strict=True)
    ]
    return train_batch(spec, 1, played, reference=reference or never, values=values or never)


def job(algorithm, **settings):
    return RLSpec(
        environment=EnvironmentRef(id="x"),
        steps=1,
        algorithm=algorithm,
        sampling=Sampling(max_turn_tokens=8),
        **settings,
    )


def half(sequences):
    """A reference under which every sampled token is half as likely."""
    return [
        np.array([p - np.log(2) for p in s.sampling_logprobs if p is not None], dtype=np.float32)
        for s in sequences
    ]
