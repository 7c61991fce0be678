import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.parsing import parse_spec

GOOD = {"environment": {"id": "board/TicTacToeVs-v0"}, "steps": 3}


def refusal(**settings) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        parse_spec({**GOOD, **settings})
    return caught.value


def test_rejects_very_many_unknown_names_without_explaining_each():
    with pytest.raises(InvalidRequestError) as caught:
        parse_spec({f"name_{i}": 1 for i in range(20_000)})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("group_size", [1, "8", True])
def test_keeps_location_of_a_part_wherever_job_has_it(group_size):
    settings = {**GOOD, "kind": "rl", "algorithm": {"name": "rloo", "group_size": group_size}}
    with pytest.raises(InvalidRequestError) as caught:
        parse_spec(settings)
    assert caught.value.field == "algorithm.group_size"


def test_mentions_every_wrong_setting_of_a_request_together():
    error = refusal(steps=0, modl="nano", seed=-1)
    assert error.field == "steps"
