import pytest

import tinkergym as tg
from tinkergym.algorithms import PPO, RLOO
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.job_spec import FullParameters, Limits, LoRA, Sampling
from tinkergym.schema.jobs import DPO
from tinkergym.schema.parsing import parse_spec

GOOD = {"environment": {"id": "board/TicTacToeVs-v0"}, "steps": 3}


def test_models_are_taken_as_settings_too():
    assert parse_spec({**GOOD, "adapter": FullParameters()}).adapter == FullParameters()


def _subclass(base, **members):
    return type("Mine", (base,), {"__module__": "users_script", **members})


@pytest.mark.parametrize("base", [tg.GRPO, PPO, RLOO, LoRA, FullParameters, DPO, Sampling, Limits])
@pytest.mark.parametrize("kind", [lambda f: f, property, classmethod, staticmethod])
def test_a_subclass_with_a_method_that_would_be_ignored_is_refused_by_the_methods_name(base, kind):
    with pytest.raises(InvalidRequestError) as refused:
        _subclass(base, advantages=kind(lambda self: 0))
    assert refused.value.field == "Mine.advantages"


def test_a_subclass_may_change_the_defaults_of_settings():
    class Mine(tg.GRPO):
        clip_low: float = 0.9

    assert parse_spec({**GOOD, "algorithm": Mine()}).algorithm.clip_low == 0.9
