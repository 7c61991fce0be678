import json
import pickle

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tinkergym.tool_calls.call import MOST_CALLS, CallText, MalformedCall, ToolCall
from tinkergym.tool_calls.syntax import parse_calls, render_calls, typed_arguments

SYNTAXES = ["hermes", "xml", "json"]
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,20}", fullmatch=True)
PLAIN_TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
TAGS = ["</think>", "<think>", "<tool_call>", "</tool_call>", "</function>", "<function=f>", "</parameter>"]
TAGS += ["<parameter=a>", '{"name": "f", "arguments": {}}', '"', "\\", "}", "[", "\n", " "]
TEXTS = PLAIN_TEXTS | st.lists(st.sampled_from(TAGS) | PLAIN_TEXTS, max_size=6).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
CALLS = st.lists(
    st.builds(ToolCall, NAMES, st.dictionaries(NAMES, VALUES, max_size=4)), min_size=1, max_size=4
)
PIECES = [
    "<tool_call>",
    "</tool_call>",
    "<function=f>",
    "<function=",
    "</function>",
    "<parameter=a>",
    "</parameter>",
    '{"name": "f", "arguments": {}}',
    '{"name":',
    '"arguments": "{',
    "[{",
    "}]",
    "\\",
    '"',
    "\\ud800",
    "\ud800",
    "NaN",
    "9" * 5000,
    "<think>",
    "</think>",
    "\n",
    " ",
    "```json",
    "[" * 3000,
]


def calls_in(text, syntax):
    calls = parse_calls(text, syntax)
    assert not [call for call in calls if isinstance(call, MalformedCall)]
    return calls


@pytest.mark.parametrize("syntax", ["hermes", "json"])
@settings(max_examples=25)
@given(calls=CALLS)
def test_reads_again_calls_that_were_written(syntax, calls):
    text = render_calls(calls, syntax)
    for before in ("", "I call it.\n", "<think>Not </tool_call> yet.</think>\n", "So far.</think>\n\n"):
        assert calls_in(before + text, syntax) == calls


@settings(max_examples=25)
@given(calls=CALLS)
def test_carries_texts_in_xml_and_reads_rest_by_schema(calls):
    try:
        text = render_calls(calls, "xml")
    except ValueError:
        reject()
    found = calls_in(text, "xml")
    assert [call.name for call in found] == [call.name for call in calls]
    for read, written in zip(found, calls, strict=True):
        kinds = {
            name: {"type": "string" if isinstance(v, str) else "object"}
            for name, v in written.arguments.items()
        }
        assert typed_arguments(read.arguments, {"properties": kinds}) == written.arguments


def test_refuses_to_write_what_xml_cannot_carry():
    with pytest.raises(ValueError, match=", which the xml syntax cannot represent"):
        render_calls([ToolCall("f", {"a": "x</parameter>\n</function>"})], "xml")


@pytest.mark.parametrize("syntax", SYNTAXES)
@settings(max_examples=100)
@given(text=st.text() | st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_raises_in_a_parser_on_no_text(syntax, text):
    for call in parse_calls(text, syntax):
        if isinstance(call, ToolCall):
            json.dumps([call.name, call.arguments], ensure_ascii=False).encode()
        else:
            assert 0 < len(call.problem) < 1000


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize("piece", [*PIECES, '<tool_call>{"a":"</tool_call>', '<tool_call>["</tool_call>",'])
def test_reads_few_calls_in_a_megabyte_of_anything(syntax, piece):
    text = (piece * (1_000_000 // len(piece) + 1))[:1_000_000]
    assert len(parse_calls(f"<tool_call>{text}", syntax)) <= MOST_CALLS + 1


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize("answer", ["42", "", "{1, 2}", "[3]", '{"x": 1}', "The set {a}.", "a <tool> b"])
def test_reads_plain_answer_as_no_call(syntax, answer):
    assert parse_calls(answer, syntax) == []


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_does_not_call_what_is_only_thought(syntax):
    call = render_calls([ToolCall("f")], syntax)
    assert parse_calls(f"<think>\n{call}\n</think>\n\n42", syntax) == []
    assert parse_calls(f"{call}\n</think>\n42", syntax) == []
    assert parse_calls(f"<think>\n{call}", syntax) == []
    assert parse_calls(f"<think>hm</think>\n{call}", syntax) == [ToolCall("f")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<tool_call>", "there is no JSON"),
        ("<tool_call>{'name': 'f'}</tool_call>", "JSON is invalid"),
        ('<tool_call>{"name": "f"} and more</tool_call>', "the JSON object is followed by"),
        ('<tool_call>{"arguments": {}}</tool_call>', '"name"'),
        ("<tool_call>[1]</tool_call>", "object"),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', '"arguments" is not an object'),
        ('<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>', "NaN"),
        ('<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>', "Unicode"),
        ('<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 100_000, "too deeply"),
    ],
)
def test_says_what_is_wrong_with_malformed_call(text, problem):
    (call,) = parse_calls(text, "hermes")
    assert isinstance(call, MalformedCall)
    assert problem in call.problem


def test_reads_calls_around_a_malformed_one():
    good = render_calls([ToolCall("f", {"a": 1})], "hermes")
    first, second, third = parse_calls(f"{good}<tool_call>oops</tool_call>{good}", "hermes")
    assert first == third == ToolCall("f", {"a": 1})
    assert isinstance(second, MalformedCall)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
        '<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>',
        '<tool_call>{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}</tool_call>',
        '<tool_call>\n{"name": "f",\n "arguments": {"a": 1}}',
        '<tool_call>{"name": "f", "arguments": null, "parameters": {"a": 1}}</tool_call>',
    ],
)
def test_understands_other_ways_to_write_the_same_call(text):
    assert parse_calls(text, "hermes") == [ToolCall("f", {"a": 1})]


@pytest.mark.parametrize(
    "arguments", ["", ', "arguments": null', ', "arguments": ""', ', "arguments": "null"']
)
def test_reads_missing_arguments_as_empty_call(arguments):
    written = f'<tool_call>{{"name": "f"{arguments}}}</tool_call>'
    assert parse_calls(written, "hermes") == [ToolCall("f")]


@pytest.mark.parametrize("syntax", SYNTAXES)
@settings(max_examples=25)
@given(calls=CALLS, kept=st.floats(0, 1, exclude_max=True))
def test_counts_cut_call_as_malformed(syntax, calls, kept):
    try:
        text = render_calls(calls[:1], syntax)
    except ValueError:
        reject()
    opened = text.index(":" if syntax == "json" else ">") + 1
    assert parse_calls(text[: opened + int(kept * (len(text) - opened))], syntax)


def test_reads_bare_json_as_list_or_in_a_fence():
    one = '{"name": "f", "arguments": {"a": 1}}'
    assert parse_calls(f"[{one}, {one}]", "json") == [ToolCall("f", {"a": 1})] * 2
    assert parse_calls(f"Let me see.\n```json\n{one}\n```", "json") == [ToolCall("f", {"a": 1})]
    assert parse_calls('{"name": "f", "arguments": {"code": "a\nb"}}', "json") == [
        ToolCall("f", {"code": "a\nb"})
    ]
    (call,) = parse_calls('{"name": "f", "arguments": {', "json")
    assert isinstance(call, MalformedCall)


def test_keeps_lines_of_a_value_in_xml():
    value = "\n\nif a < b:\n    c()\n\n"
    text = f"<tool_call>\n<function=run>\n<parameter=code>{value}</parameter>\n</function>\n</tool_call>"
    assert parse_calls(text, "xml") == [ToolCall("run", {"code": "\nif a < b:\n    c()\n"})]


def test_takes_calls_that_were_parsed_before():
    call = ToolCall("add", {"a": "</think>"}, "call00000")
    text = pickle.loads(pickle.dumps(CallText("no call is written here", [call])))
    assert (text, parse_calls(text, "native")) == ("no call is written here", [call])
    assert parse_calls(text, "hermes") == parse_calls(str(text), "native") == []
