from __future__ import annotations

import pytest

from backend.processes.machine_gpus import AskedGpus, known_gpus, machine_gpus

TWO = "0, GPU-aaa, 81559\n1, GPU-bbb, 24576\n"


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, {"0": 81_559, "1": 24_576}),
        ("1,0", {"1": 24_576, "0": 81_559}),
        ("GPU-bbb", {"1": 24_576}),
        ("1,7,0", {"1": 24_576}),
        ("", {}),
    ],
)
def test_sees_gpus_that_this_process_may_use(visible, expected):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = machine_gpus(environ, lambda: TWO)
    assert list(found.items()) == [(index, size * 2**20) for index, size in expected.items()]


def test_sees_none_where_nothing_answers():
    assert machine_gpus({}, lambda: "") == {}
    assert machine_gpus({}, lambda: "NVIDIA-SMI has failed") == {}
    assert machine_gpus({}, lambda: None) == {}


def test_tells_a_failed_answer_from_no_gpus():
    assert known_gpus({}, lambda: None) is None
    assert known_gpus({}, lambda: "") == {}


def test_asks_again_until_gpus_are_known():
    answers, seconds = [{"0": 80}, None, None], [0.0]
    gpus = AskedGpus(answers.pop, lambda: seconds[0])
    for at, found, left in [(0.0, {}, 2), (29.0, {}, 2), (31.0, {}, 1), (62.0, {"0": 80}, 0)]:
        seconds[0] = at
        assert gpus() == found
        assert len(answers) == left
    seconds[0] = 100.0
    assert gpus() == {"0": 80}
