import pytest

from tinkergym.schema.sampling import Completion, SampleRequest
from tinkergym.trajectory.trajectory import Segment, StopReason, Trajectory, Turn
from tinkergym.trajectory.unchecked import unchecked

TURN = {
    "segment": 0,
    "start": 1,
    "end": 2,
    "policy_version": 3,
    "finish_reason": "stop",
    "observation": "o",
    "action": "a",
    "reward": 0.5,
}
SEGMENT = {"token_ids": [1, 2], "loss_mask": [False, True], "sampling_logprobs": [None, -0.5]}
CASES = [
    (Turn, TURN),
    (Turn, {**TURN, "metrics": {"won": 1.0}}),
    (Segment, SEGMENT),
    (
        Trajectory,
        {
            "segments": [Segment(**SEGMENT)],
            "turns": [Turn(**TURN)],
            "terminated": True,
            "truncated": False,
            "stop_reason": StopReason.TERMINATED,
            "seed": 7,
        },
    ),
    (
        Completion,
        {
            "request_id": "r",
            "token_ids": [1],
            "sampling_logprobs": [-1.0],
            "finish_reason": "stop",
            "policy_version": 0,
        },
    ),
    (
        SampleRequest,
        {"request_id": "r", "policy": "p", "prompt_ids": [1], "max_tokens": 2, "stop_ids": [3], "seed": 1},
    ),
]


@pytest.mark.parametrize(("model", "values"), CASES)
def test_a_record_of_checked_parts_is_the_checked_record(model, values):
    checked, built = model(**values), unchecked(model, **dict(reversed(values.items())))
    assert built == checked
    assert built.model_dump_json() == checked.model_dump_json()
    assert built.model_fields_set == checked.model_fields_set
    assert built.model_copy() == checked


def test_two_records_share_no_default():
    first, second = unchecked(Turn, **TURN), unchecked(Turn, **TURN)
    first.metrics["won"] = 1.0
    assert second.metrics == {}
