import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.reporting import Callback, CsvTracker, JsonlTracker
from tinkergym.reporting.trackers import callbacks_of


def test_mixes_names_and_callbacks_or_takes_one_alone():
    mine = CsvTracker("elsewhere")
    first, second = callbacks_of(["jsonl", mine])
    assert isinstance(first, JsonlTracker)
    assert second is mine
    assert isinstance(mine, Callback)
    assert isinstance(callbacks_of("csv")[0], CsvTracker)
    assert callbacks_of(()) == []


@pytest.mark.parametrize("wrong", ["excel", 3, [3], [CsvTracker]])
def test_rejects_what_is_no_tracker(wrong):
    with pytest.raises(InvalidRequestError) as refused:
        callbacks_of(wrong)
    assert refused.value.field == "report_to"
