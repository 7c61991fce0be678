"""The list of seeded faults fits the tree, so that a trial of it means something."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.seeded import Fault, chosen, read

FAULTS = read(Path(__file__).parent)
HERE = "tests/faults/test_list.py"
FAULT = Fault(
    id="x1",
    what="this one would not be found",
    file=HERE,
    old="def test_fits_every_entry" + "_to_the_tree",
    new="def other",
    tests=(f"{HERE}::test_fits_every_entry_to_the_tree",),
)


def test_fits_every_entry_to_the_tree():
    problems = {fault.id: fault.problem() for fault in FAULTS}
    assert {name: problem for name, problem in problems.items() if problem is not None} == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"old": "no such text" + " anywhere"},
        {"old": "def test"},
        {"file": "tests/faults/gone.py"},
        {"new": FAULT.old},
        {"tests": ()},
        {"tests": (f"{HERE}::test_gone",)},
        {"tests": (HERE,)},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_notices_entry_that_no_longer_fits(changes):
    assert FAULT.problem() is None
    assert replace(FAULT, **changes).problem() is not None


def test_chooses_faults_by_id_or_area():
    one, other = replace(FAULT, area="own_loop"), replace(FAULT, id="x2", area="images")
    assert chosen([one, other], []) == [one, other]
    assert chosen([one, other], ["x1"]) == [one]
    assert chosen([one, other], ["images"]) == [other]
    with pytest.raises(ValueError, match="x3"):
        chosen([one, other], ["x3"])


def test_lists_an_id_once(tmp_path):
    entry = '[[fault]]\nid = "x1"\nwhat = ""\nfile = ""\nold = ""\nnew = ""\ntests = []\n'
    (tmp_path / "area.toml").write_text(entry)
    assert [(fault.id, fault.area) for fault in read(tmp_path)] == [("x1", "area")]
    (tmp_path / "other.toml").write_text(entry)
    with pytest.raises(ValueError, match="x1"):
        read(tmp_path)
