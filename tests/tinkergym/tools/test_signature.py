from typing import Annotated, Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel

import tinkergym as tg
from tests.tinkergym.tools.tools_of_tests import annotated, paint
from tinkergym.errors import InvalidToolError


class Tree(BaseModel):
    children: list["Tree"]


def test_takes_schema_from_the_annotations_and_the_docstring():
    schema = paint.schema()
    jsonschema.Draft202012Validator.check_schema(paint.parameters)
    assert schema["type"] == "function"
    function = schema["function"]
    assert (function["name"], function["description"]) == ("paint", "Paint points.\n\nThey stay painted.")
    properties = function["parameters"]["properties"]
    assert properties["colour"] == {"description": "Of the paint.", "enum": ["red", "blue"], "type": "string"}
    assert properties["points"]["description"] == "Where to paint, in pixels: left first."
    assert properties["points"]["items"]["properties"] == {
        "x": {"type": "integer"},
        "title": {"default": "here", "type": "string"},
    }
    assert properties["share"] == {"default": 0.5, "type": "number"}
    assert properties["style"]["enum"] == ["dots", "lines"]
    assert function["parameters"]["required"] == ["colour", "points"]
    assert function["parameters"]["additionalProperties"] is False


@pytest.mark.parametrize(
    ("annotation", "code"),
    [
        (Any, "not_json"),
        (object, "not_json"),
        (bytes, "not_json"),
        (tuple[int, int], "not_json"),
        (set[int], "not_json"),
        (int | str, "not_json"),
        (dict[int, str], "not_json"),
        (list[bytes], "not_json"),
        (Tree, "recursive"),
        (Literal[b"x"], "not_json"),
        (Annotated[int, "a number"], "not_json"),
        ("NoSuchName", "unreadable_annotation"),
        (list["bytes"], "not_json"),
    ],
)
def test_rejects_annotations_that_a_model_cannot_fill_immediately(annotation, code):
    with pytest.raises(InvalidToolError) as refused:
        tg.tool(annotated(annotation))
    assert refused.value.code == code


def without_annotation(value):
    """Take a value."""


def without_docstring(value: int):
    pass


def with_any_number(*values: int):
    """Take values."""


def with_a_wrong_default(value: int = "three"):
    """Take a value."""


def with_a_stray_description(value: int):
    """Take a value.

    Args:
        valeu: The value.
    """


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (without_annotation, "no_annotation"),
        (without_docstring, "no_docstring"),
        (with_any_number, "no_name"),
        (with_a_wrong_default, "wrong_default"),
        (with_a_stray_description, "unknown_argument"),
    ],
)
def test_rejects_function_that_cannot_be_described_and_says_why(function, code):
    with pytest.raises(InvalidToolError) as refused:
        tg.tool(function)
    assert refused.value.code == code
