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
    "annotation",
    [
        Any,
        object,
        bytes,
        tuple[int, int],
        set[int],
        int | str,
        dict[int, str],
        list[bytes],
        Tree,
        Literal[b"x"],
        Annotated[int, "a number"],
        "NoSuchName",
        list["bytes"],
    ],
)
def test_rejects_annotations_that_a_model_cannot_fill_immediately(annotation):
    with pytest.raises(InvalidToolError):
        tg.tool(annotated(annotation))


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
    ("function", "hint"),
    [
        (without_annotation, "annotate it"),
        (without_docstring, "what the tool does"),
        (with_any_number, "a name"),
        (with_a_wrong_default, "default"),
        (with_a_stray_description, "valeu"),
    ],
)
def test_rejects_function_that_cannot_be_described_and_says_why(function, hint):
    with pytest.raises(InvalidToolError):
        tg.tool(function)
