"""Two nodes with four GPUs each that only Ray believes in: models compute on CPUs, places are planned."""

from __future__ import annotations

import json
import sys
from collections import Counter

import pytest

from backend.planning.machines import Machine, Placed
from backend.planning.memory_needs import usable_bytes
from tests.backend.cluster.hosts_in_namespaces import missing, until
from tests.backend.cluster.service_on_hosts import cluster_of
from tinkergym.schema.events import JobState

pytestmark = [
    pytest.mark.service,
    pytest.mark.full("starts Ray on several hosts"),
    pytest.mark.timeout(1500),
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
]
GPU_BYTES = 80 * 10**9
MODELS = ("nano", "nano-instruct", "nano-vl")
RANKS = {"nano": 1, "nano-instruct": 2, "nano-vl": 3}
_PLANS = """
import json, ray
from ray.experimental import internal_kv as kv
ray.init(address="auto", log_to_driver=False)
names = {entry["NodeID"]: entry["NodeManagerAddress"] for entry in ray.nodes() if entry["Alive"]}
keys = kv._internal_kv_list(b"", namespace=b"tinkergym-plans")
plans = [kv._internal_kv_get(key, namespace=b"tinkergym-plans").decode() for key in keys]
print("PLANS", json.dumps([names, plans]))
"""
_OTHER = """
import ray
from backend.planning.machines import Part, Placed
from backend.scheduler.ray_groups import PoolGroups
ray.init(address="auto", namespace="another-service", log_to_driver=False)
part = Part(kind="pool", number=0, node_id="", cpus=0.5)
PoolGroups().reserve("pool-other", Placed(name="pool-other", model="other", parts=(part,)), on_nodes=False)
"""


def plans(cluster):
    """Return the addresses of the nodes by Ray's ids, and what is placed."""
    lines = cluster.hosts.run(0, sys.executable, "-c", _PLANS).splitlines()
    names, written = json.loads(
        next(line for line in lines if line.startswith("PLANS")).removeprefix("PLANS ")
    )
    return names, [Placed.from_json(text) for text in written]


def test_places_three_models_on_pretended_gpus_and_moves_them():
    with cluster_of(3) as cluster:
        cluster.start((1, 2), cpus=12, gpus=4)
        settings = {f"models.{model}.placement.learner.ranks": RANKS[model] for model in MODELS}
        settings |= {f"models.{model}.placement.engines": 1 for model in MODELS}
        cluster.serve(0, gpu_bytes=GPU_BYTES, preload="[]", **settings)
        jobs = [cluster.submit(model, steps=3) for model in MODELS for _ in range(2)]
        service = cluster.store.service()
        until(lambda: all(service.job(job).step >= 1 for job in jobs), "six jobs that learn", 600)
        names, placed = plans(cluster)
        assert {one.model: len(one.of("rank")) for one in placed} == RANKS
        assert {one.model: one.gpus for one in placed} == RANKS
        claims = Counter()
        for one in placed:
            claims.update({(node_id, gpu): size for node_id, gpu, size in one.claims})
        machine = Machine(node_id="", cpus=0, memory_bytes=0, gpus=(GPU_BYTES,) * 4)
        assert all(size <= usable_bytes(machine.gpus[gpu]) for (_, gpu), size in claims.items())
        hosts = {cluster.hosts.address(number): number for number in (1, 2)}
        planned = {hosts[names[part.node_id]] for one in placed for part in one.of("pool")}
        assert set(cluster.hosts_of("PoolProcess")) == planned
        assert set(cluster.hosts_of("RankActor")) == {
            hosts[names[part.node_id]] for one in placed if one.gpus > 1 for part in one.of("rank")
        }
        lost = planned.pop()
        cluster.hosts.cut(lost)
        until(lambda: all(service.job(job).state.final for job in jobs), "the jobs' end", 600)
        assert {service.job(job).state for job in jobs} == {JobState.COMPLETED}
        names, placed = plans(cluster)
        assert {hosts[names[part.node_id]] for one in placed for part in one.parts} == {1, 2} - {lost}
        cluster.hosts.run(0, sys.executable, "-c", _OTHER)
        cluster.stop()
        # What it leaves is another service's.
        assert cluster.left() == "['pool|pool-other']"
        assert [one.model for one in plans(cluster)[1]] == ["other"]
