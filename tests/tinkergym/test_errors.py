import pickle
import re

import pytest

from tinkergym import errors
from tinkergym.errors import InvalidRequestError, TinkerGymError, from_wire

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, TinkerGymError) and kind.__module__ == errors.__name__
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_keeps_errors_type_and_fields_on_wire_and_between_processes(kind):
    error = kind("what happened", hint="what to do", field="a.b")
    error.code = "which_refusal"
    for again in (from_wire(error.to_wire()), pickle.loads(pickle.dumps(error))):
        assert type(again) is kind
        assert (again.message, again.hint, again.field) == ("what happened", "what to do", "a.b")
        assert again.code == "which_refusal"


def test_draws_every_type_under_its_base():
    drawn = {}
    path = []
    for line in errors.__doc__.splitlines():
        names = re.findall(r"\w+Error\b", line.partition(":")[0])
        if names and (line.startswith("    TinkerGymError") or "── " in line):
            depth = 0 if line.startswith("    Tinker") else (line.index("── ") - 1) // 4
            path = [*path[:depth], names[0]]
            drawn |= dict.fromkeys(names, path[depth - 1] if depth else "TinkerGymError")
    assert drawn == {kind.__name__: kind.__base__.__name__ for kind in KINDS} | {
        "TinkerGymError": "TinkerGymError"
    }


def test_reads_an_error_of_a_newer_service():
    wire = InvalidRequestError("m").to_wire() | {"type": "FromTheFutureError"}
    assert isinstance(from_wire(wire), TinkerGymError)
