from copy import deepcopy

import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.spec import KINDS
from tinkergym.schema.parsing import parse_spec
from tinkergym.schema.refusals import models_in

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


OF_KINDS = {
    "rl": GOOD,
    "distillation": {**GOOD, "teacher": "nano"},
    "sft": {"data": "0" * 64, "steps": 3},
    "preference": {"data": "0" * 64, "steps": 3},
    "policy": {},
}
HOSTILE = [
    *(None, True, -1, float("nan"), 10**400, "", "x" * 100_000, "\x00", "\ud800", "{it}", "a/b@c@d"),
    *([], [[None]], [{}] * 40, {}, {"": ""}, {"kind": "x"}, {"x": {"kind": "train"}}, {"x": {"y": "\ud800"}}),
]


def places(model, *above):
    """The path of every setting, in sections too."""
    for name in model.model_fields:
        yield (*above, name)
        for inner in models_in(model, name) if not above else ():
            yield from places(inner, name)


def with_value(settings, path, value):
    changed = section = deepcopy(settings)
    for name in path[:-1]:
        section = section.setdefault(name, {})
    section[path[-1]] = value
    return changed


@pytest.mark.parametrize("kind", OF_KINDS)
def test_accepts_or_explains_hostile_value_of_every_setting(kind):
    for path in dict.fromkeys(places(KINDS[kind])):
        for value in HOSTILE:
            settings = with_value({**OF_KINDS[kind], "kind": kind}, path, value)
            try:
                parse_spec(settings).model_dump_json()
            except InvalidRequestError as error:
                assert all((error.field, error.code, error.message, error.hint)), (path, value, error)


def test_refuses_half_of_a_surrogate_pair_within_arguments():
    error = refusal(environment={"id": "a", "kwargs": {"x": ["fine", "\ud800"]}})
    assert error.field == "environment.kwargs.x"
