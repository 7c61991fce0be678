import copy
import pickle
from typing import Any

import pytest

import tinkergym as tg
from tests.tinkergym.tools.tools_of_tests import Colour, annotated, paint
from tinkergym.errors import InvalidToolError, ToolArgumentsError


def test_converts_arguments_to_what_annotations_say():
    text = paint.call({"colour": "red", "points": [{"x": 1}], "times": "3", "json": {"a": 1}})
    assert text == '{"colour":"red","points":[{"x":1,"title":"here"}],"times":3,"json":{"a":1}}'


def test_keeps_tool_callable_as_the_function():
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
def test_tells_model_about_unfitting_arguments_so_it_can_act(arguments, told):
    with pytest.raises(ToolArgumentsError) as caught:
        paint.call(arguments)
    assert all(part in str(caught.value) for part in told)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("result", "text"),
    [("as it is", "as it is"), (None, "done"), (3, "3"), ([1.5, None], "[1.5,null]"), (float("nan"), "NaN")],
)
def test_returns_result_as_text_or_json(result, text):
    @tg.tool
    def give() -> Any:
        """Give it."""
        return result

    assert give.call({}) == text


@pytest.mark.parametrize("name", ["two words", "1st", "x" * 65, "a\nb"])
def test_rejects_name_that_breaks_the_syntax(name):
    with pytest.raises(InvalidToolError, check=lambda error: error.field == "name"):
        tg.tool(name=name)(annotated(int))


def test_binds_method_to_its_instance_without_a_self_argument():
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
    with pytest.raises(InvalidToolError, check=lambda error: error.code == "unbound_method"):
        Shop.cost.call({"pieces": 3})
