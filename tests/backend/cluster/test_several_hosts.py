"""A service whose gateway, pools and environment workers are on different machines, and what it survives.

The hosts share the network, one PostgreSQL server and one bucket, and nothing else: each has a data folder of
its own. Where no server for buckets is installed, they share a folder for blobs.
"""

from __future__ import annotations

import hashlib
import time

import pytest

from backend.store.object_blobs import ObjectBlobs
from tests.backend.cluster.hosts_in_namespaces import missing, until
from tests.backend.cluster.service_on_hosts import DATA, cluster_of
from tests.backend.s3_server import HAS_S3, NEEDS_S3
from tinkergym.schema.events import JobState

pytestmark = [pytest.mark.service, pytest.mark.full("starts Ray on several hosts"), pytest.mark.timeout(900)]

QUEUED_SECONDS = 10.0
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def cluster():
    if reason := missing():
        pytest.skip(reason)
    with cluster_of(4) as cluster:
        cluster.start((1, 2))
        cluster.serve(0)
        until(cluster.is_ok, "a service that is ok")
        yield cluster


@pytest.fixture(scope="module")
def trained(cluster):
    job_id = cluster.submit()
    cluster.final_weights(job_id)
    return job_id


@pytest.fixture(scope="module")
def undisturbed(cluster, trained):
    return cluster.final_weights(trained)


def test_trains_and_samples_on_hosts_apart(cluster, trained, undisturbed):
    (pool,), (player,) = cluster.hosts_of("PoolProcess"), cluster.hosts_of("EnvWorkerProcess")
    assert {pool, player} == {1, 2}
    cluster.serve(3, role="gateway")
    until(lambda: cluster.is_ok(3), "a second gateway")
    recorded = cluster.store.service().checkpoints(trained)[-1]
    sampled = [cluster.sample(number, trained, recorded.policy_version) for number in (0, 3)]
    assert sampled[0] == sampled[1]
    path = f"/v1/jobs/{trained}/checkpoints/{recorded.step}/files/{WEIGHTS}"
    downloaded = cluster.ask(3, path).content
    assert hashlib.sha256(downloaded).hexdigest() == recorded.sha256


@pytest.mark.skipif(not HAS_S3, reason=f"the hosts share a folder for blobs; a bucket {NEEDS_S3}")
def test_shares_no_folder(cluster, trained):
    assert trained in ObjectBlobs(cluster.blobs, None).folders("jobs")


def test_refuses_node_with_other_versions_and_says_why(cluster, undisturbed):
    # Its own version is written where Python looks first.
    fake = cluster.hosts.shared / "fake" / "torch-0.0.1.dist-info"
    fake.mkdir(parents=True)
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 0.0.1\n")
    cluster.hosts.start_node(3, PYTHONPATH=str(fake.parent))
    refusal = f"{cluster.hosts.address(3)} is not used (torch 0.0.1 there"
    until(lambda: refusal in cluster.hosts.read(0, f"{DATA}/logs/scheduler.log"), "the refusal")
    cluster.hosts.stop_node(3)


def test_goes_on_elsewhere_when_a_host_loses_its_network(cluster, undisturbed):
    cluster.hosts.start_node(3)
    job_id = cluster.submit()
    cluster.until_step(job_id, 3)
    (lost,) = cluster.hosts_of("PoolProcess")
    cluster.hosts.cut(lost)
    began = time.monotonic()
    queued = until(lambda: cluster.store.service().job(job_id).state is JobState.QUEUED, "the queue", 60)
    took = time.monotonic() - began
    reason = cluster.store.service().job(job_id).reason
    assert queued
    assert took < QUEUED_SECONDS
    assert "its worker" in reason
    assert cluster.final_weights(job_id) == undisturbed
    cluster.hosts.join(lost)
    cluster.hosts.stop_node(lost)  # Ray's own end of a node that was given up.
    cluster.hosts.start_node(lost)
    # The host that took over goes, so that there is room only with the one that is back.
    (taken_over,) = cluster.hosts_of("PoolProcess")
    cluster.hosts.stop_node(taken_over)
    assert cluster.final_weights(cluster.submit()) == undisturbed
    assert lost in cluster.hosts_of("PoolProcess") + cluster.hosts_of("EnvWorkerProcess")
    cluster.hosts.start_node(taken_over)


def test_waits_for_the_database_and_ends_with_same_bits(cluster, undisturbed):
    job_id = cluster.submit()
    cluster.until_step(job_id, 3)
    cluster.server.freeze()
    began = time.monotonic()
    until(lambda: "database" in cluster.ask(0, "/v1/health").json()["waiting_for"], "the reason", 20)
    # What is measured is a stop of this length.
    time.sleep(max(0.0, 20.0 - (time.monotonic() - began)))
    cluster.server.thaw()
    assert cluster.final_weights(job_id) == undisturbed


def test_waits_for_a_cluster_whose_head_died(cluster, undisturbed):
    job_id = cluster.submit()
    cluster.until_step(job_id, 3)
    cluster.hosts.run(0, "pkill", "-KILL", "gcs_server")
    # Nodes end by themselves a minute after their head, and the pools with them.
    for number in (1, 2, 3):
        cluster.hosts.kill(number, "raylet")
    until(lambda: "cluster" in cluster.ask(0, "/v1/health").json()["waiting_for"], "the cluster's end")
    until(lambda: cluster.store.service().job(job_id).state is JobState.QUEUED, "the queue")
    until(lambda: "Ray cluster" in cluster.store.service().job(job_id).reason, "the reason")
    for number in range(4):
        cluster.hosts.stop_node(number)
    cluster.start((1, 2))
    assert cluster.final_weights(job_id) == undisturbed


def test_leaves_no_actor_and_no_group_behind(cluster):
    assert cluster.left() != "[]"
    cluster.stop()
    assert cluster.left() == "[]"


def test_learns_same_bits_with_ranks_on_two_hosts(cluster):
    if cluster.serving[0, "all"].poll() is None:  # Where this test runs alone.
        cluster.stop()

    def learn(cpus):
        for number in range(4):
            cluster.hosts.stop_node(number)
        cluster.hosts.start_node(0, head=None, cpus=0)
        for number, count in cpus.items():
            cluster.hosts.start_node(number, cpus=count)
        cluster.serve(0, **{"placement.learner.ranks": 2, "placement.learner.divided": "true"})
        job_id = cluster.submit_written()
        cluster.until_step(job_id, 1)
        apart = cluster.hosts_of("RankActor")
        found = cluster.final_weights(job_id)
        cluster.stop()
        return apart, found

    together, expected = learn({3: 4})
    apart, found = learn({1: 2, 2: 2})
    assert (together, apart) == ([3], [1, 2])
    assert found == expected
