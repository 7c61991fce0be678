"""How the calls of a chat template are read: the grammar comes from the template itself."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.template_families import shipped_template, template_bundle
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import TemplateError
from tinkergym.tool_calls.call import MalformedCall, ToolCall
from tinkergym.tool_calls.grammar import grammar_of

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer", "description": "One."}}},
    },
}


def hermes(call):
    function = call["function"]
    written = json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


def xml(call):
    function = call["function"]
    values = "".join(
        f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
        for key, value in function["arguments"].items()
    )
    return f"<tool_call>\n<function={function['name']}>\n{values}</function>\n</tool_call>"


def glm(call):
    function = call["function"]
    values = "".join(
        f"\n<arg_key>{key}</arg_key>\n"
        f"<arg_value>{value if isinstance(value, str) else json.dumps(value)}</arg_value>"
        for key, value in function["arguments"].items()
    )
    return f"\n<tool_call>{function['name']}{values}\n</tool_call>"


def mistral(call):
    function = call["function"]
    return f"[TOOL_CALLS]{function['name']}[ARGS]{json.dumps(function['arguments'])}"


def listed(call):
    return "[TOOL_CALLS] [" + json.dumps({**call["function"], "id": call["id"]}) + "]"


def llama(call):
    return json.dumps({"name": call["function"]["name"], "parameters": call["function"]["arguments"]})


def harmony(call):
    function = call["function"]
    arguments = json.dumps(function["arguments"])
    return f" to=functions.{function['name']}<|channel|>commentary json<|message|>{arguments}"


def several(write):
    return lambda calls: "\n".join(map(write, calls))


def only_one(write):
    def render(calls):
        if len(calls) > 1:
            raise TemplateError("one call at a time")
        return write(calls[0])

    return render


def call(name, call_id="call00000", **arguments):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


GRAMMARS = {
    write: grammar_of(several(write)) for write in (hermes, listed, llama, mistral, harmony, xml, glm)
}
IDS = {write: "call00000" if write is listed else "" for write in GRAMMARS}
TAGS = ["</think>", "<think>", "<tool_call>", "</tool_call>", "</parameter>", "</arg_value>", "[ARGS]", '"']
TAGS += ["<parameter=a>", "<arg_key>", "[TOOL_CALLS]", '{"name": "f", "arguments": {}}', "\\", "}", "\n", " "]
TEXTS = st.lists(st.sampled_from(TAGS) | st.text(st.characters(exclude_categories=["Cs"])), max_size=6).map(
    "".join
)
MARKS = re.compile(r"</(?:parameter|arg_value)>\s*(?:<|\Z)|^\n|\n\Z")


@pytest.mark.parametrize(
    ("write", "kind"),
    [
        (hermes, "object"),
        (listed, "object"),
        (llama, "object"),
        (mistral, "named"),
        (harmony, "named"),
        (xml, "pairs"),
        (glm, "pairs"),
    ],
)
def test_reads_a_templates_own_calls_back(write, kind):
    grammar = grammar_of(several(write))
    assert grammar.kind == kind
    (read,) = grammar.read(write(call("weather", city="Rome {x}\nItaly"))).calls
    assert (read.name, read.arguments) == ("weather", {"city": "Rome {x}\nItaly"})
    assert grammar.read("It is sunny.").calls == ()
    assert grammar.read("{1, 2}").calls == ()


def test_gives_up_on_example_calls_that_take_minutes_to_read():
    def write(call):
        return "[" * 900 + "1," * 900_000 + call["function"]["name"]

    with pytest.raises(TemplateError):
        grammar_of(several(write))


@pytest.mark.parametrize("write", [hermes, listed, llama, mistral, harmony, xml, glm])
@settings(max_examples=50)
@given(text=TEXTS, others=st.lists(TEXTS, max_size=2))
def test_takes_tags_within_strings_as_text(write, text, others):
    arguments = {f"key{number}": one for number, one in enumerate([text, *others])}
    written = write(call("note", **arguments))
    # Without escapes, nothing tells a value from the marks around it.
    assume(write not in (xml, glm) or not any(MARKS.search(one) for one in arguments.values()))
    for before in ("", "<think>\nNot yet.\n</think>\n\n"):
        assert GRAMMARS[write].read(before + written).calls == (ToolCall("note", arguments, IDS[write]),)


@pytest.mark.parametrize("write", [hermes, llama, mistral, harmony, xml, glm])
@given(kept=st.floats(0, 1, exclude_max=True))
def test_counts_call_cut_anywhere_as_malformed(write, kept):
    text = write(call("note", text="say </think> or </tool_call>, then on"))
    begun = len(GRAMMARS[write].opening) + text.index("note")
    read = GRAMMARS[write].read(text[: begun + int(kept * (len(text) - begun))]).calls
    assert len(read) == 1


@pytest.mark.parametrize("write", [hermes, llama])
def test_reads_null_arguments_as_empty_call(write):
    text = write(call("note")).replace("{}", "null")
    assert GRAMMARS[write].read(text).calls == (ToolCall("note"),)


@pytest.mark.parametrize("write", [hermes, mistral, xml, glm])
def test_keeps_text_before_calls_as_content_and_calls_in_order(write):
    grammar = grammar_of(several(write))
    read = grammar.read("Let me see. " + write(call("a", x="1")) + "\n" + write(call("b")))
    assert read.content.strip() == "Let me see."
    assert [one.name for one in read.calls] == ["a", "b"]


def test_keeps_id_that_the_policy_wrote():
    (read,) = grammar_of(several(listed)).read(listed(call("a", "abcdef123"))).calls
    assert read == ToolCall("a", {}, "abcdef123")


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "a", "arguments": }\n</tool_call>',
        '<tool_call>{"name": 3}</tool_call>',
        "<tool_call>",
        '<tool_call>\n{"name": "a", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"name": "a", "arguments": NaN}\n</tool_call>',
        '<tool_call>\n{"name": "a", "arguments": {}} and more</tool_call>',
    ],
)
def test_counts_unreadable_call_as_a_call_all_the_same(text):
    (read,) = grammar_of(several(hermes)).read(text).calls
    assert isinstance(read, MalformedCall)


def test_accepts_stop_token_in_place_of_a_calls_closing():
    grammar = grammar_of(several(hermes))
    (read,) = grammar.read('<tool_call>\n{"name": "a", "arguments": {}}\n</tool').calls
    assert read == ToolCall("a", {})


def test_does_not_call_what_is_only_thought():
    grammar = grammar_of(several(hermes))
    thought = f"<think>\n{hermes(call('a'))}\n"
    assert grammar.read(thought).calls == ()
    read = grammar.read(f"{thought}</think>\n\n{hermes(call('b'))}")
    assert [one.name for one in read.calls] == ["b"]
    assert read.content.startswith(thought)


@pytest.mark.parametrize("write", [hermes, listed, mistral, harmony, xml, glm])
@pytest.mark.parametrize("opened", ["", "<think>\n"])
def test_ends_name_where_a_thought_only_mentions_the_mark(write, opened):
    grammar = grammar_of(several(write))
    thought = f"{opened}A call begins with {grammar.opening} and then its name.\n</think>\n\n"
    read = grammar.read(thought + write(call("note", text="x")))
    assert read.calls == (ToolCall("note", {"text": "x"}, IDS[write]),)
    assert read.content.rstrip() == thought.rstrip()


def test_leaves_others_unread_where_template_writes_one_call():
    grammar = grammar_of(only_one(llama))
    assert grammar.single
    first, rest = grammar.read(llama(call("a")) + "\n" + llama(call("b"))).calls
    assert first.name == "a"
    assert isinstance(rest, MalformedCall)


def test_bounds_many_calls():
    grammar = grammar_of(several(hermes))
    read = grammar.read(hermes(call("a")) * 70).calls
    assert len(read) == 65
    assert isinstance(read[-1], MalformedCall)


def test_rejects_unknown_form_with_what_to_do():
    with pytest.raises(TemplateError):
        grammar_of(lambda calls: calls[0]["function"]["name"].upper())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("qwen2_5", "object"),
        ("qwen3", "object"),
        ("llama3_1", "object"),
        ("qwen3_5_nothink", "pairs"),
        ("glm4moe", "pairs"),
        ("gptoss", "named"),
    ],
)
def test_reads_the_grammars_of_families_off_their_templates(name, kind):
    source = shipped_template(name)
    if source is None:
        pytest.skip(f"trl, which ships the template {name}, is not installed")
    renderer = Renderer.from_bundle(template_bundle(name, source)).with_tools([TOOL])
    assert renderer.call_grammar.kind == kind
