from __future__ import annotations

from types import SimpleNamespace

import pytest

from backend.config import ServiceConfig
from backend.scheduler.unplaced import CLUSTER, Wants, why_unplaced

SMALL = SimpleNamespace(cpus=2.0, memory_bytes=4 * 10**9)


def wants(tmp_path, **settings):
    config = ServiceConfig(data_dir=tmp_path, torch_threads=4, **settings)
    return config, Wants.of(config, "nano", 10**9)


def test_asks_a_cluster_for_processors_and_memory(tmp_path):
    config, pool = wants(tmp_path, ray={"address": "auto"}, env_workers=3)
    assert pool.bundles(config) == [{"CPU": 4.0, "memory": 1e9}, {"CPU": 3.0}]


def test_keeps_first_rank_with_pool_and_others_apart(tmp_path):
    config, pool = wants(tmp_path, ray={"address": "auto"}, placement={"learner": {"ranks": 2}})
    first, _, rank = pool.bundles(config)
    assert first == {"CPU": 1.0 + 2.0, "memory": 1e9}
    assert rank == {"CPU": 2.0, "memory": 1e9}


def test_never_lacks_processors_on_the_services_own_ray(tmp_path):
    config, pool = wants(tmp_path, placement={"learner": {"ranks": 4}}, env_workers=8)
    assert sum(bundle["CPU"] for bundle in pool.bundles(config)) < 0.01
    assert not [bundle for bundle in pool.bundles(config) if "memory" in bundle]


@pytest.mark.parametrize(
    ("state", "nodes", "may_change"),
    [("INFEASIBLE", [SMALL], False), ("NO_RESOURCES", [SMALL], True), ("no node", [], False)],
)
def test_says_without_a_colon_what_the_cluster_lacks(tmp_path, state, nodes, may_change):
    _, pool = wants(tmp_path, ray={"address": "auto"})
    found = why_unplaced(state, pool, nodes, "10.0.0.7 is not used (torch 2.1 there, 2.2 here)")
    assert found.may_change is may_change
    assert CLUSTER in found.reason
    assert "10.0.0.7 is not used" in found.reason
    assert ":" not in found.reason
