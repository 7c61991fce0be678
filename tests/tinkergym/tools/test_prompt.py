import pytest

from tinkergym.tools.definition import tool
from tinkergym.tools.prompt import describe_tools


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.mark.parametrize("syntax", ["hermes", "xml", "json"])
def test_shows_model_what_there_is_with_example_call(syntax):
    text = describe_tools([add], syntax, max_calls=1)
    assert "Add two numbers." in text
    assert "1 call in all" in text
    assert "tool_name" in text
