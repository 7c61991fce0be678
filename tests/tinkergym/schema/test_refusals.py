import pytest
from pydantic import BaseModel, ValidationError, model_validator

from tinkergym.errors import InvalidRequestError, UnknownModelError
from tinkergym.schema.refusals import Refusal, explain, no_effect

LOW = Refusal("depth", "must be above {0}: what a user typed may hold braces", "raise it", "too_low")


class Settings(BaseModel):
    depth: int = 0

    @model_validator(mode="after")
    def _is_deep(self):
        raise LOW.in_validator()


def test_arrives_from_a_validator_as_it_was_made():
    with pytest.raises(ValidationError) as failed:
        Settings()
    error = explain(failed.value, Settings)
    assert error.to_wire() == LOW.error().to_wire()


@pytest.mark.parametrize("kind", [InvalidRequestError, UnknownModelError])
def test_becomes_an_error_of_the_wanted_type(kind):
    error = LOW.error(kind)
    assert type(error) is kind
    assert error.to_wire() == {**LOW.error().to_wire(), "type": kind.__name__}


def test_names_what_an_idle_setting_needs():
    refusal = no_effect("top_k", "temperature")
    assert (refusal.field, refusal.code) == ("top_k", "no_effect")
    assert "temperature" in refusal.reason
