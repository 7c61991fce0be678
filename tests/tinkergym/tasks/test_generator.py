import pytest

from tests.tinkergym.tasks.forms import rows
from tinkergym.errors import InvalidRequestError
from tinkergym.tasks import GeneratorTasks


def test_draws_generator_only_as_far_as_needed_and_once():
    drawn = []

    def endless():
        for i in range(10**9):
            drawn.append(i)
            yield {"i": i}

    tasks, other = GeneratorTasks(endless, 1000), GeneratorTasks(endless, 1000)
    assert (len(tasks), drawn) == (1000, [])
    assert tasks[4] == {"i": 4}
    assert other[2] == {"i": 2}
    assert drawn == [0, 1, 2, 3, 4]
    with pytest.raises(IndexError):
        tasks[1000]


def test_says_where_generator_ends_or_fails_too_early():
    def broken():
        yield {"i": 0}
        raise OSError("the source dried up")

    tasks = GeneratorTasks(broken, 5)
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="failed at task 1: OSError: the source dried up"):
            tasks[3]
    assert tasks[0] == {"i": 0}
    with pytest.raises(InvalidRequestError) as caught:
        GeneratorTasks(rows, 11)[10]
    assert caught.value.field == "count"
    with pytest.raises(InvalidRequestError) as caught:
        GeneratorTasks(rows, 0)
    assert caught.value.field == "count"
