"""Options that are generated from the fields of a spec."""

from typing import Any

import pytest

from tinkergym.cli.field_options import SettingOption, help_of, with_decoding_options
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.dataset import PreferenceSpec, SFTSpec
from tinkergym.schema.jobs.rl import RLSpec


@pytest.mark.parametrize(
    ("model", "name", "text"),
    [
        (SFTSpec, "batch_size", "Records per train step. (default: 32)"),
        (SFTSpec, "steps", "Train steps."),
        (PreferenceSpec, "learning_rate", "Peak learning rate. (default: 0.0001)"),
        (SFTSpec, "keep_checkpoints", "(default: 3)"),
    ],
)
def test_explains_an_option_by_the_fields_docstring_and_default(model, name, text):
    assert help_of(model, name) == text


def test_reads_a_docstring_of_its_own_field_only():
    text = help_of(SFTSpec, "chat_template")
    assert text.startswith("Jinja text instead of the model's own template")


@pytest.mark.parametrize(
    ("setting", "kind"),
    [
        ("algorithm.group_size", int),
        ("algorithm.learning_rate", float),
        ("adapter.rank", int),
        ("model", str),
    ],
)
def test_takes_the_type_of_a_setting_in_its_default_variant(setting, kind):
    parameter = SettingOption(setting).parameter(RLSpec)
    assert parameter.annotation.__origin__ == kind | None
    assert parameter.default is None


def test_sets_value_by_a_flag_only_if_given():
    option = SettingOption("adapter.kind", name="full", kind=bool, flag="full")
    assert (option.value(True), option.value(False)) == ("full", None)


def test_refuses_decoding_option_out_of_range_by_its_name():
    @with_decoding_options([SettingOption("max_turn_tokens")])
    def command(*, decoding: dict[str, Any]) -> None:
        assert decoding == {"max_turn_tokens": 5}

    command(max_turn_tokens=5)
    with pytest.raises(InvalidRequestError) as caught:
        command(max_turn_tokens=0)
    assert caught.value.field == "--max-turn-tokens"
