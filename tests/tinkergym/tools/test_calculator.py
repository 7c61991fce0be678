import pytest

from tinkergym.errors import ToolError
from tinkergym.tools.calculator import calculator


@pytest.mark.parametrize(
    ("expression", "result"),
    [("(3+4)*12.5", "87.5"), ("2**10", "1024"), ("-7/2", "-3.5"), ("0.1+0.2", "0.3")],
)
def test_calculates_exactly(expression, result):
    assert calculator.call({"expression": expression}) == result


@pytest.mark.parametrize(
    "expression",
    [
        "1/0",
        "2**65",
        "9**64**2",
        "__import__('os')",
        "a+1",
        "1,2",
        "",
        "(" * 150,
        "True",
        "9" * 201,
        "1e4000",
    ],
)
def test_reports_uncomputable_expression_as_error_of_the_tool(expression):
    with pytest.raises(ToolError):
        calculator.call({"expression": expression})
