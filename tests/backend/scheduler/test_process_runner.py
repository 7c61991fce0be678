from __future__ import annotations

import pytest

from backend.scheduler.process_runner import Running


@pytest.mark.parametrize(
    ("process", "name"),
    [
        (Running(kind="pool", pool_id="pool-1", worker_id="pool-1", model="org/a|b"), "pool|pool-1|org/a|b"),
        (Running(kind="env_worker", pool_id="pool-1", worker_id="env-2"), "env_worker|pool-1|env-2"),
        (
            Running(kind="engine_host", pool_id="pool-1", worker_id="engine-3", number=12),
            "engine_host|pool-1|12|engine-3",
        ),
    ],
)
def test_finds_a_process_by_its_name(process, name):
    assert str(process) == name
    assert Running.find(name) == process


@pytest.mark.parametrize(
    "name", ["gpus|node", "gpus|node|1", "pool|pool-1", "engine_host|p|x", "ranks|pool-1|0", ""]
)
def test_knows_no_process_of_another_name(name):
    assert Running.find(name) is None
