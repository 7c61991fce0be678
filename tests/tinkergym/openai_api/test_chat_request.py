import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.openai_api.chat_request import ChatRequest
from tinkergym.schema.parsing import parse_json
from tinkergym.schema.structured import JsonSchema, Regex

ASKED = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
TOOL = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object"}}}


def test_takes_the_smaller_of_both_limits():
    assert ChatRequest(**ASKED).longest is None
    assert ChatRequest(**ASKED, max_tokens=9).longest == 9
    assert ChatRequest(**ASKED, max_tokens=9, max_completion_tokens=5).longest == 5


def test_takes_null_for_every_field_as_left_out():
    nothing = dict.fromkeys(set(ChatRequest.model_fields) - set(ASKED))
    assert ChatRequest(**ASKED, **nothing) == ChatRequest(**ASKED)


def test_shows_tools_unless_there_is_to_be_no_call():
    assert ChatRequest(**ASKED, tools=[TOOL], tool_choice="auto").shown_tools == [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    ]
    assert ChatRequest(**ASKED, tools=[TOOL], tool_choice="none").shown_tools == []


@pytest.mark.parametrize(
    ("given", "structured"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, JsonSchema(json_schema={"type": "object"})),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"a": 1}}}},
            JsonSchema(json_schema={"a": 1}),
        ),
        ({"structured_outputs": {"regex": "a+"}}, Regex(pattern="a+")),
    ],
)
def test_translates_what_constrains_the_completion(given, structured):
    assert ChatRequest(**ASKED, **given).structured == structured


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ('"min_p": 0.1', "min_p"),
        ('"functions": [{}]', "functions"),
        ('"guided_json": {}', "guided_json"),
        ('"tools": [{"type": "web_search"}]', "tools"),
        ('"tool_choice": {"type": "function"}', "tool_choice"),
        ('"structured_outputs": {"regex": "a", "json": {}}', "structured_outputs"),
        (
            '"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}',
            "structured_outputs",
        ),
        ('"chat_template_kwargs": {"messages": []}', "chat_template_kwargs"),
        ('"seed": 1.5', "seed"),
    ],
)
def test_refuses_by_name(given, field):
    body = '{"model": "m", "messages": [{"role": "user", "content": "a"}], ' + given + "}"
    with pytest.raises(InvalidRequestError) as refused:
        parse_json(ChatRequest, body.encode())
    assert refused.value.field.startswith(field)
