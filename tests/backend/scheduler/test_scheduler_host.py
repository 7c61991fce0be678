"""Real processes: Ray with scheduler, pool and environment worker, killed one after the other."""

from __future__ import annotations

import psutil
import pytest

pytestmark = [pytest.mark.service, pytest.mark.full("starts and kills Ray")]


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module")
def undisturbed(host):
    return host.final_weights(host.submit())


def test_repeats_a_run_to_the_bit(host, undisturbed):
    assert host.final_weights(host.submit()) == undisturbed


@pytest.mark.parametrize("victim", ["env_worker_process", "PoolProcess", "host"])
def test_ends_with_same_bits_when_killed_at_step_3(host, undisturbed, victim):
    job_id = host.submit()
    host.until(lambda: host.service.job(job_id).step >= 3)
    if victim == "host":
        below = host.below()
        host.find("env_worker_process").suspend()
        host.process.kill()
        host.process.wait()
        # By themselves, as nobody is left to end them.
        host.until(lambda: not any(is_alive(process) for process in below))
        host.start()
    else:
        host.find(victim).kill()
    assert host.final_weights(job_id) == undisturbed
    warnings = [e.body for e in host.tenant.events_after(job_id, 0, 1000) if e.body.type == "warning"]
    assert {warning.name for warning in warnings} <= {"lockstep_broken", "environment_crashed"}
    ends = [
        e for e in host.tenant.events_after(job_id, 0, 1000) if e.body.type == "state" and e.body.state.final
    ]
    assert len(ends) == 1


@pytest.mark.parametrize("kind", ["sft", "preference"])
def test_ends_with_same_bits_on_written_data_when_pool_dies(host, kind):
    undisturbed = host.final_weights(host.submit_written(kind))
    job_id = host.submit_written(kind)
    host.until(lambda: host.service.job(job_id).step >= 10)
    host.find("PoolProcess").kill()
    assert host.final_weights(job_id) == undisturbed
    assert host.service.job(job_id).attempt == 2
