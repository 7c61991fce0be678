"""Places on our own machine, whose GPUs nvidia-smi may fail to tell."""

from __future__ import annotations

from backend.config import ServiceConfig
from backend.scheduler.ray_placing import Placing
from tests.backend.scheduler.conftest import Clock
from tests.backend.scheduler.test_pools_in_cluster import GB, Groups


def test_waits_for_gpus_while_nvidia_smi_fails(tmp_path):
    answers, clock = [None, None, {}, {"0": 80 * GB}], Clock()
    config = ServiceConfig(data_dir=tmp_path, models={"m": {"path": "some/m", "placement": {"gpus": 1}}})
    placing = Placing(config, {}, groups=Groups(), gpus=lambda: answers.pop(0), monotonic=clock)
    placing.want("pool", "m", GB)

    def looks():
        clock.now += 31.0
        return list(placing.placed()), placing.waiting(), placing.impossible()

    placed, waiting, impossible = looks()
    assert (placed, impossible) == ([], {})
    assert not waiting["pool"].forever
    placed, waiting, impossible = looks()
    assert waiting["pool"].forever
    assert "m" in impossible
    (_, _, place), *more = looks()[0]
    assert (place.gpus, more) == (1, [])


def test_uses_gpus_that_are_known_late(tmp_path):
    answers, clock = [None, {"0": 80 * GB}], Clock()
    placing = Placing(
        ServiceConfig(data_dir=tmp_path), {}, groups=Groups(), gpus=lambda: answers.pop(0), monotonic=clock
    )
    clock.now += 31.0
    placing.want("pool", "some/m", GB)
    ((_, _, place),) = placing.placed()
    assert place.gpus == 1
