import copy
import enum
import pickle
from typing import Annotated, Any, Literal, Optional

import jsonschema
import pytest
from pydantic import BaseModel

import tinkergym as tg
from tinkergym.errors import InvalidToolError, ToolArgumentsError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    title: str = "here"


class Tree(BaseModel):
    children: list["Tree"]


@tg.tool
def paint(
    colour: Colour,
    points: list[Point],
    times: int = 1,
    share: float = 0.5,
    wet: bool = False,
    style: Literal["dots", "lines"] = "dots",
    note: Optional[str] = None,  # noqa: UP045 - older code writes it so
    json: dict[str, int] | None = None,
):
    """Paint points.

    They stay painted.

    Args:
        colour: Of the paint.
        points (list): Where to paint,
            in pixels: left first.
        share:

    Returns:
        What was painted.
    """
    return {"colour": colour, "points": points, "times": times, "json": json}


def test_the_schema_comes_from_the_annotations_and_the_docstring():
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


def test_arguments_become_what_the_annotations_say():
    text = paint.call({"colour": "red", "points": [{"x": 1}], "times": "3", "json": {"a": 1}})
    assert text == '{"colour":"red","points":[{"x":1,"title":"here"}],"times":3,"json":{"a":1}}'


def test_a_tool_is_still_the_function():
    assert paint(Colour.BLUE, [], times=2)["times"] == 2
    assert pickle.loads(pickle.dumps(paint)) is paint
    assert copy.deepcopy(paint) is paint


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, ["colour is missing", "points is missing", "It takes: colour, points, times"]),
        ({"colour": "green", "points": []}, ["'red' or 'blue'", "'green'"]),
        ({"colour": "red", "points": [{"x": "y"}]}, ["points.0.x", "'y'"]),
        ({"colour": "red", "points": [], "size": 1}, ["there is no argument size"]),
        ({"colour": "red", "points": [], "share": float("inf")}, ["share", "finite"]),
        ({"colour": "red", "points": "x" * 100_000}, ["points"]),
    ],
)
def test_arguments_that_do_not_fit_are_told_so_that_a_model_can_act(arguments, told):
    with pytest.raises(ToolArgumentsError) as caught:
        paint.call(arguments)
    assert all(part in str(caught.value) for part in told)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("result", "text"),
    [("as it is", "as it is"), (None, "done"), (3, "3"), ([1.5, None], "[1.5,null]"), (float("nan"), "NaN")],
)
def test_a_result_is_text_or_json(result, text):
    @tg.tool
    def give() -> Any:
        """Give it."""
        return result

    assert give.call({}) == text


def annotated(annotation):
    def function(value):
        """Take a value."""

    function.__annotations__["value"] = annotation
    return function


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
def test_annotations_that_a_model_cannot_fill_are_refused_at_once(annotation):
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
def test_a_function_that_cannot_be_described_is_refused_and_the_error_says_why(function, hint):
    with pytest.raises(InvalidToolError, match=hint):
        tg.tool(function)


@pytest.mark.parametrize("name", ["two words", "1st", "x" * 65, "a\nb"])
def test_a_name_that_breaks_the_syntax_is_refused(name):
    with pytest.raises(InvalidToolError, match="name"):
        tg.tool(name=name)(annotated(int))


def test_a_method_belongs_to_its_instance_and_self_is_no_argument():
    class Shop:
        def __init__(self, price):
            self.price = price

        @tg.tool
        def cost(self, pieces: int) -> int:
            """Return the price of some pieces."""
            return self.price * pieces

    assert list(Shop.cost.parameters["properties"]) == ["pieces"]
    assert Shop(2).cost.call({"pieces": 3}) == "6"
    assert Shop(5).cost(3) == 15
    with pytest.raises(InvalidToolError, match="instance"):
        Shop.cost.call({"pieces": 3})
