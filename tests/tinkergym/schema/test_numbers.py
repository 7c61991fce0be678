import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.parsing import parse_spec

GOOD = {"environment": {"id": "board/TicTacToeVs-v0"}, "steps": 3}


def test_accepts_integers_as_fractions_and_back():
    spec = parse_spec({**GOOD, "steps": 1e3, "algorithm": {"learning_rate": 1}, "parity_threshold": None})
    assert (spec.steps, spec.algorithm.learning_rate, spec.parity_threshold) == (1000, 1.0, None)


def test_rejects_weight_decay_that_float32_cannot_hold():
    with pytest.raises(InvalidRequestError) as caught:
        parse_spec({"kind": "sft", "data": "0" * 64, "steps": 1, "weight_decay": 1e300})
    assert caught.value.field == "weight_decay"
