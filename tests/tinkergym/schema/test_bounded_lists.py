"""What holds for everything that client and service say to each other."""

import tinkergym.schema.evaluation  # its models, too
import tinkergym.schema.jobs.view
import tinkergym.schema.uploaded_data  # noqa: F401
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


def test_limits_every_list_to_a_longest_length():
    models = {model for base in (WireModel, Record) for model in below(base)}
    ours = {model for model in models if model.__module__.startswith("tinkergym")}
    assert len(ours) > 100
    found = [where for model in ours for where in unbounded_lists(model.model_json_schema(), model.__name__)]
    assert found == []
