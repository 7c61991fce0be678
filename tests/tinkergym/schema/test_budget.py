import pytest

import tinkergym as tg
from tinkergym.errors import InvalidRequestError


def test_requires_a_bound_in_budget():
    with pytest.raises(InvalidRequestError):
        tg.Budget()


@pytest.mark.parametrize("settings", [{"hours": 0}, {"tokens": 0}, {"hours": float("nan")}, {"minutes": 3}])
def test_rejects_what_is_no_bound(settings):
    with pytest.raises(InvalidRequestError) as caught:
        tg.Budget(**settings)
    assert caught.value.field == f"Budget.{next(iter(settings))}"


def test_uses_budget_up_when_either_bound_is_reached():
    budget = tg.Budget(hours=1.0, tokens=100)
    assert budget.used_up(3599.0, 99) == ""
    assert budget.used_up(3600.0, 0)
    assert budget.used_up(0.0, 100)
