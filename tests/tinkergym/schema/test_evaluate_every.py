import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.parsing import parse_spec


def test_rejects_interval_where_there_is_nothing_to_measure_with():
    spec = {"kind": "sft", "data": "0" * 64, "steps": 1, "eval_every": 5}
    with pytest.raises(InvalidRequestError) as caught:
        parse_spec(spec)
    assert caught.value.field == "eval_every"
    assert parse_spec({**spec, "held_out": 0.1}).eval_every == 5
