from __future__ import annotations

import re
import time

import pytest

from tests.backend.scheduler.hosts import Host

pytestmark = [pytest.mark.service, pytest.mark.full("starts and kills Ray")]


@pytest.fixture(scope="module")
def undisturbed(host):
    return host.final_weights(host.submit())


def test_runs_ranks_as_actors_that_end_with_their_pool(tmp_path):
    host = Host(tmp_path, placement={"learner": {"ranks": 2, "divided": True}})
    try:
        # Few and small steps: every one of them is four times as slow with two ranks on two cores.
        short = {"adapter": {"kind": "full"}, "steps": 12, "batch_size": 8, "checkpoint_every": 3}
        undisturbed = host.final_weights(host.submit_written("sft", **short))
        job_id = host.submit_written("sft", **short)
        host.until(lambda: host.service.job(job_id).step >= 4)
        first = host.named("RankActor")
        assert len(first) == 2
        first[1].kill()
        assert host.final_weights(job_id) == undisturbed
        warnings = [e.body for e in host.tenant.events_after(job_id, 0, 1000) if e.body.type == "warning"]
        # What is usual is learned anew after a resume, so that another step may stand out.
        (lost,) = [warning for warning in warnings if not warning.name.endswith("_spike")]
        assert lost.name == "rank_lost"
        # Ray starts both at a time, so either may be the first of the processes.
        assert re.search(rf"rank [01] ended with process {first[1].pid}\b", lost.message)
        second = host.named("RankActor")
        assert len(second) == 2
        assert {rank.pid for rank in first}.isdisjoint(rank.pid for rank in second)

        # The pool's memory is that of its process and of both ranks.
        processes = [host.find("PoolProcess"), *second]
        least = 0.9 * sum(process.memory_info().rss for process in processes)
        host.until(lambda: host.service.pools(time.time(), max_age=60.0)[0].memory_bytes > least)

        second[0].suspend()  # it hears neither its pool's end nor Ray
        host.find("PoolProcess").kill()
        host.until(lambda: not any(rank.is_running() for rank in second))
    finally:
        assert host.stop() == 0
        host.store.close()
