"""Play a list of episodes, with the same player as a worker that leases them from a service."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.agent.sampler import Sampler
from tinkergym.rollout.executors import Executor, MakeEnv
from tinkergym.rollout.played_episode import Recorder
from tinkergym.rollout.player import EpisodePlayer
from tinkergym.schema.episodes import EpisodeRequest, EpisodeResult


def play(
    requests: Iterable[EpisodeRequest | EpisodePlan],
    *,
    sampler: Sampler,
    renderer: Renderer | Callable[[str], Renderer],
    make_env: MakeEnv,
    max_concurrent: int = 64,
    executor: Executor | None = None,
    recorder: Recorder | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[EpisodeResult]:
    """Play episodes and yield each as it ends, in no particular order.

    Args:
        requests: The episodes; taken from the iterable as places become free.
        sampler: Samples tokens; the caller closes it.
        renderer: The model's renderer, or a function from a model's name to its renderer.
        make_env: Creates an environment; it is used for several episodes, one after the other.
        max_concurrent: Episodes played at once, as far as the executor has room.
        executor: Where environments run; None uses each plan's setting, usually threads.
        recorder: See `EpisodePlayer`.
        clock: Seconds, monotonic.
    """
    waiting = iter(requests)
    player = EpisodePlayer(
        sampler=sampler, make_env=make_env, executor=executor, recorder=recorder, clock=clock
    )
    most = max_concurrent if executor is None else min(max_concurrent, executor.capacity)
    try:
        exhausted = False
        while True:
            while not exhausted and player.active < most:
                request = next(waiting, None)
                if request is None:
                    exhausted = True
                    break
                plan = EpisodePlan.from_request(request) if isinstance(request, EpisodeRequest) else request
                player.start(plan, renderer)
            if exhausted and not player.active:
                return
            yield from player.poll(1.0)
    finally:
        player.close()
