"""Rows in other layouts: ShareGPT, Alpaca, plain text, labels, tool calls, and columns passed over."""

from __future__ import annotations

import pytest

import tinkergym as tg
from tests.tinkergym.datasets.test_prepare import fault, records, tokens_of, trained_texts
from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.prepare import prepare
from tinkergym.errors import InvalidDataError
from tinkergym.testing import byte_bundle

CALLING = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t.function.name }} {% endfor %}<|im_end|>\n"
    "{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}</call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {}}}


@pytest.fixture(scope="module")
def renderer():
    return Renderer.from_bundle(byte_bundle(chat_template=CALLING))


def same(renderer, row, ours, kind="sft"):
    return tokens_of(renderer, row, kind=kind) == tokens_of(renderer, ours, kind=kind)


def test_sharegpt_and_alpaca_are_read_as_our_own_layouts(renderer):
    turns = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert same(renderer, {"conversations": turns}, {"messages": messages})
    framed = [{"role": "system", "content": "s"}, *messages]
    assert same(renderer, {"conversations": turns, "system": "s"}, {"messages": framed})
    alpaca = {"instruction": "add", "input": "1 2", "output": "3"}
    assert same(renderer, alpaca, {"prompt": "add\n\n1 2", "completion": "3"})
    assert same(renderer, {"instruction": "add", "output": "3"}, {"prompt": "add", "completion": "3"})


def test_of_a_plain_text_every_token_is_learned_from_up_to_the_end_of_the_document(renderer):
    (record,) = tokens_of(renderer, {"text": "abc"})
    (sequence,) = record
    assert renderer.decode(sequence.token_ids) == "abc<|im_end|>"
    assert trained_texts(renderer, sequence) == ["bc<|im_end|>"]


def test_labeled_answers_to_one_prompt_are_paired_in_order(renderer):
    def labeled(completion, *, label):
        return {"prompt": "sky?", "completion": completion, "label": label}

    rows = [labeled("blue", label=True), labeled("red", label=False), labeled("mud", label=False)]
    paired = tokens_of(renderer, *rows, labeled("clear", label=True), kind="preference")
    expected = [
        {"prompt": "sky?", "chosen": "blue", "rejected": "red"},
        {"prompt": "sky?", "chosen": "clear", "rejected": "mud"},
    ]
    assert paired == tokens_of(renderer, *expected, kind="preference")
    assert "task 0: label" in fault(renderer, rows[0], kind="preference")
    assert "label" in fault(renderer, labeled("blue", label="yes"), kind="preference")


def test_tool_calls_are_learned_as_the_models_template_writes_them(renderer):
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    row = {
        "tools": [WEATHER],
        "messages": [
            {"role": "user", "content": "Rome?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "sunny", "tool_call_id": "1"},
            {"role": "assistant", "content": "It is sunny."},
        ],
    }
    ((sequence,),) = tokens_of(renderer, row)
    assert renderer.decode(sequence.token_ids).startswith("<|im_start|>system\nweather <|im_end|>")
    assert trained_texts(renderer, sequence) == [
        '<call>weather {"city": "Rome"}</call><|im_end|>',
        "It is sunny.<|im_end|>",
    ]


@pytest.mark.parametrize(
    ("row", "where"),
    [
        ({"conversations": [{"from": "alien", "value": "a"}]}, "conversations[0].from"),
        ({"conversations": ["a"]}, "conversations[0]"),
        ({"text": 3}, "text"),
        ({"instruction": 3, "output": "a"}, "instruction"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{}]}]},
            "messages[1].tool_calls[0]",
        ),
        ({"tools": "{", "prompt": "a", "completion": "b"}, "tools"),
    ],
)
def test_what_is_wrong_is_named_by_its_field(renderer, row, where):
    assert f": {where}" in fault(renderer, row)


def test_tools_that_a_template_does_not_show_are_refused():
    silent = Renderer.from_bundle(byte_bundle())
    assert "tools" in fault(silent, {"tools": [WEATHER], "prompt": "a", "completion": "b"})


def test_columns_are_passed_over_where_they_are_named(renderer):
    row = {"prompt": "a", "completion": "b", "source": "web", "id": 7}
    assert "unknown key" in fault(renderer, row)
    source = tg.tasks.SequenceTasks([row])
    found = records(prepare(source, renderer, kind="sft", ignore=["source", "id"]))
    assert found == tokens_of(renderer, {"prompt": "a", "completion": "b"})
    with pytest.raises(InvalidDataError) as caught:
        prepare(source, renderer, kind="sft", ignore=["source", "id", "sorce"])
    assert caught.value.field == "ignore"
