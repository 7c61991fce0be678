"""What holds for everything that client and service say to each other."""

import pytest

from tinkergym.schema.model import WireModel
from tinkergym.trajectory.bounded_numbers import Record


def below(model):
    for child in model.__subclasses__():
        yield child
        yield from below(child)


def unbounded_lists(schema, where):
    if isinstance(schema, dict):
        if schema.get("type") == "array" and "maxItems" not in schema:
            yield where
        for name, part in schema.items():
            yield from unbounded_lists(part, f"{where}.{name}")
    elif isinstance(schema, list):
        for number, part in enumerate(schema):
            yield from unbounded_lists(part, f"{where}.{number}")


MODELS = {model.__name__: model for base in (WireModel, Record) for model in below(base)}


@pytest.mark.parametrize(
    "name", sorted(name for name in MODELS if MODELS[name].__module__[:9] == "tinkergym")
)
def test_limits_every_list_to_a_longest_length(name):
    assert list(unbounded_lists(MODELS[name].model_json_schema(), name)) == []
