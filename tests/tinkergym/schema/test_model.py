import re
from pathlib import Path
from typing import Literal

import pytest
from pydantic import field_validator

import tinkergym as tg
from tinkergym.algorithms import PPO, RLOO, PolicyGradient
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.parts import FullParameters, Limits, LoRA, Sampling
from tinkergym.schema.parsing import parse_spec
from tinkergym.schema.preference_losses import DPO

GOOD = {"environment": {"id": "board/TicTacToeVs-v0"}, "steps": 3}


def test_takes_models_as_settings_too():
    assert parse_spec({**GOOD, "adapter": FullParameters()}).adapter == FullParameters()


def _subclass(base, **members):
    return type("Mine", (base,), {"__module__": "users_script", **members})


@pytest.mark.parametrize("base", [tg.GRPO, PPO, RLOO, LoRA, FullParameters, DPO, Sampling, Limits])
@pytest.mark.parametrize("kind", [lambda f: f, property, classmethod, staticmethod])
def test_rejects_subclass_with_ignored_method_by_its_name(base, kind):
    with pytest.raises(InvalidRequestError) as refused:
        _subclass(base, advantages=kind(lambda self: 0))
    assert refused.value.field == "Mine.advantages"


def test_lets_subclass_change_the_defaults_of_settings():
    class Mine(tg.GRPO):
        clip_low: float = 0.9

    assert parse_spec({**GOOD, "algorithm": Mine()}).algorithm.clip_low == 0.9


class Mixin:
    def advantages(self, rewards):
        return rewards


@pytest.mark.parametrize("bases", [(Mixin, tg.GRPO), (tg.GRPO, Mixin)])
def test_rejects_mixins_method_by_subclass_that_service_would_get(bases):
    with pytest.raises(InvalidRequestError) as refused:
        type("Mine", bases, {"__module__": "users_script"})
    assert refused.value.field == "Mine.advantages"


@pytest.mark.parametrize("name", ["_advantages", "_loss", "__call__"])
def test_rejects_method_named_like_an_internal_one_too(name):
    with pytest.raises(InvalidRequestError) as refused:
        _subclass(tg.GRPO, **{name: lambda self: 0})
    assert refused.value.field == f"Mine.{name}"


def test_names_in_methods_refusal_what_runs_own_code():
    with pytest.raises(InvalidRequestError) as refused:
        _subclass(tg.GRPO, advantages=lambda self: 0)
    pages = re.findall(r"docs/[\w/]+\.md", refused.value.hint)
    assert len(pages) == 2
    assert all(Path(page).exists() for page in pages)


def test_lets_algorithms_of_a_pack_share_methods():
    own = {"name": "mine", "__annotations__": {"name": Literal["mine"]}, "__module__": "users_pack"}
    assert type("Mine", (Mixin, PolicyGradient), own)().advantages(1) == 1


def test_lets_subclass_of_a_subclass_check_its_settings():
    class Mine(tg.GRPO):
        clip_low: float = 0.9

        @field_validator("clip_low")
        @classmethod
        def _is_small(cls, value: float) -> float:
            return min(value, 0.5)

    class Again(Mine):
        clip_high: float = 0.4

    assert Again(clip_low=0.8).clip_low == 0.5
