"""Rows in other layouts: ShareGPT, Alpaca, plain text, labels, tool calls, and columns passed over."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer

import tinkergym as tg
from tests.tinkergym.datasets.test_prepare import fault, records, tokens_of, trained_texts
from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.prepare import prepare
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.views import ImageRules
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
QUESTION = {"role": "user", "content": "Rome?"}
DEEP = "[" * 100_000


def called(arguments):
    return {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}


WEATHER_CALL = called('{"city": "Rome"}')


def answer_with(call, content=None):
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def with_answer(field, spoken):
    """Return a row with an answer in one of the fields that hold messages."""
    result = {"role": "tool", "content": "sunny", "tool_call_id": "1"}
    return {
        "messages": {"messages": [QUESTION, spoken]},
        "prompt": {"prompt": [QUESTION, spoken, result], "completion": "It is sunny."},
        "completion": {"prompt": "Rome?", "completion": [spoken]},
        "chosen": {"prompt": "Rome?", "chosen": [spoken], "rejected": "I do not know."},
    }[field]


@pytest.fixture(scope="module")
def renderer():
    return Renderer.from_bundle(byte_bundle(chat_template=CALLING))


def vision_renderer(template=CALLING):
    """Return a renderer whose template writes a tilde for each image."""
    parts = (
        "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
        "{{ '~' if part.type == 'image' else part.text }}{% endfor %}{% endif %}"
    )
    bundle = byte_bundle(chat_template=template.replace("{{ m.content }}", parts))
    placeholder = Tokenizer.from_str(bundle.tokenizer_json).token_to_id("~")
    rules = ImageRules(placeholder=placeholder, tokens=4)
    return Renderer.from_bundle(bundle.model_copy(update={"images": rules}))


def same(renderer, row, ours, kind="sft"):
    return tokens_of(renderer, row, kind=kind) == tokens_of(renderer, ours, kind=kind)


def test_reads_sharegpt_and_alpaca_as_our_own_layouts(renderer):
    turns = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert same(renderer, {"conversations": turns}, {"messages": messages})
    framed = [{"role": "system", "content": "s"}, *messages]
    assert same(renderer, {"conversations": turns, "system": "s"}, {"messages": framed})
    alpaca = {"instruction": "add", "input": "1 2", "output": "3"}
    assert same(renderer, alpaca, {"prompt": "add\n\n1 2", "completion": "3"})
    assert same(renderer, {"instruction": "add", "output": "3"}, {"prompt": "add", "completion": "3"})


def test_reads_layouts_of_llama_factory_and_answers_of_apis(renderer):
    first, second = ({"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1"})
    asked = {"role": "user", "content": "q2"}
    alpaca = {"instruction": "q2", "input": "", "history": [["q1", "a1"]]}
    assert same(renderer, {**alpaca, "output": "a2"}, {"prompt": [first, second, asked], "completion": "a2"})
    pair = {"chosen": "a", "rejected": "b"}
    assert same(renderer, {"instruction": "q2", **pair}, {"prompt": "q2", **pair}, "preference")
    tagged = [{"instruction": "q2", "output": text, "kto_tag": text == "a"} for text in "ab"]
    tags = [{"from": "human", "value": "q2"}, {"from": "gpt", "value": "b"}]
    for bad in (tagged[1], {"conversations": tags, "kto_tag": False}):
        found = tokens_of(renderer, tagged[0], bad, kind="preference")
        assert found == tokens_of(renderer, {"prompt": "q2", **pair}, kind="preference")
    refusal = {"role": "assistant", "content": None, "refusal": "No.", "annotations": [], "audio": None}
    assert same(renderer, {"messages": [asked, refusal]}, {"prompt": "q2", "completion": "No."})
    assert "content" in fault(renderer, {"messages": [asked, {"role": "assistant", "content": None}]})


def test_learns_from_every_token_of_plain_text(renderer):
    (record,) = tokens_of(renderer, {"text": "abc"})
    (sequence,) = record
    assert renderer.decode(sequence.token_ids) == "abc<|im_end|>"
    assert trained_texts(renderer, sequence) == ["bc<|im_end|>"]


def test_pairs_labeled_answers_to_one_prompt_in_order(renderer):
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


def test_pairs_labeled_answers_to_one_prompt_with_image(tmp_path):
    Image.new("RGB", (64, 64), "red").save(tmp_path / "sky.png")
    asked = [{"role": "user", "content": [{"type": "image", "path": "sky.png"}]}]
    rows = [{"prompt": asked, "completion": text, "label": text == "red"} for text in ("red", "blue")]
    file = tmp_path / "labeled.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    found = prepare(file, vision_renderer(), kind="preference")
    assert (found.records, len(found.images)) == (1, 1)
    pixels = np.zeros((64, 64, 3), np.uint8)
    asked = [{"role": "user", "content": [{"type": "image", "image": pixels}]}]
    rows = [{"prompt": asked, "completion": text, "label": text == "red"} for text in ("red", "blue")]
    assert len(tokens_of(vision_renderer(), *rows, kind="preference")) == 1


def test_rejects_prompt_of_labeled_answer_that_cannot_be_compared(renderer):
    row = {"prompt": {"a", "b"}, "completion": "blue", "label": True}
    assert "task 0: prompt: " in fault(renderer, row, kind="preference")


def test_learns_tool_calls_as_the_models_template_writes_them(renderer):
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


@pytest.mark.parametrize("text", ["Let me see.", [{"type": "text", "text": "Let me see."}]])
@pytest.mark.parametrize("field", ["messages", "prompt", "completion", "chosen"])
def test_renders_calls_with_adjacent_text_wherever_messages_stand(renderer, field, text):
    spoken = answer_with(WEATHER_CALL, content=text)
    kind = "preference" if field == "chosen" else "sft"
    row = with_answer(field, spoken)
    whole = renderer.decode(tokens_of(renderer, row, kind=kind)[0][0].token_ids)
    assert 'Let me see.<call>weather {"city": "Rome"}</call><|im_end|>' in whole
    silent = Renderer.from_bundle(byte_bundle())
    said = fault(silent, row, kind=kind)
    assert "the chat template leaves out " in said
    assert f"{field}[" in said


def calls_in(renderer, row, kind="sft"):
    """Return the trained answers of a row, whose template counts the messages up to each."""
    return [trained_texts(renderer, sequence) for sequence in tokens_of(renderer, row, kind=kind)[0]]


def test_renders_call_after_exactly_the_messages_before_it():
    counting = CALLING.replace("{% for c in", "{% if m.tool_calls %}#{{ loop.index }}{% endif %}{% for c in")
    renderer = Renderer.from_bundle(byte_bundle(chat_template=counting))
    spoken, result = answer_with(WEATHER_CALL), {"role": "tool", "content": "sunny", "tool_call_id": "1"}
    call = '<call>weather {"city": "Rome"}</call><|im_end|>'
    several = [QUESTION, spoken, result, answer_with(called({"city": "Bonn"})), result, spoken]
    other = call.replace("Rome", "Bonn")
    asked = [QUESTION, {"role": "assistant", "content": "Which?"}, QUESTION]
    assert calls_in(renderer, {"messages": several}) == [[f"#2{call}", f"#4{other}", f"#6{call}"]]
    assert calls_in(renderer, {"prompt": asked, "completion": [spoken]}) == [
        ["Which?<|im_end|>", f"#4{call}"]
    ]
    both = {"prompt": "Rome?", "chosen": [several[3]], "rejected": [spoken]}
    assert calls_in(renderer, both, kind="preference") == [[f"#2{other}"], [f"#2{call}"]]
    both = {"prompt": asked, "chosen": [spoken], "rejected": [several[3]]}
    assert calls_in(renderer, both, kind="preference") == [[f"#4{call}"], [f"#4{other}"]]


def test_writes_every_call_of_an_answer_in_order(renderer):
    calls = [WEATHER_CALL, called({"city": "Bonn", "days": 2}), called("")]
    spoken = {"role": "assistant", "content": "So:", "tool_calls": calls}
    assert calls_in(renderer, {"messages": [QUESTION, spoken]}) == [
        [
            'So:<call>weather {"city": "Rome"}</call><call>weather {"city": "Bonn", "days": 2}</call>'
            "<call>weather {}</call><|im_end|>"
        ]
    ]


def test_renders_call_after_an_image():
    pixels = np.zeros((8, 8, 3), np.uint8)
    asked = {
        "role": "user",
        "content": [{"type": "image", "image": pixels}, {"type": "text", "text": "Rome?"}],
    }
    ((sequence,),) = tokens_of(vision_renderer(), {"messages": [asked, answer_with(WEATHER_CALL)]})
    assert (len(sequence.images), len(sequence.trained)) == (1, 1)


def test_passes_text_parts_before_a_call_to_template_as_text():
    strict = Renderer.from_bundle(
        byte_bundle(chat_template=CALLING.replace("m.content }}", "m.content + '' }}"))
    )
    asked = {"role": "user", "content": [{"type": "text", "text": "Rome?"}]}
    row = {"messages": [asked, answer_with(WEATHER_CALL)]}
    assert "user\nRome?<|im_end|>" in strict.decode(tokens_of(strict, row)[0][0].token_ids)


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([QUESTION, answer_with(WEATHER_CALL, content=5)], "messages[1].content: must be text or null"),
        ([QUESTION, answer_with(WEATHER_CALL, content=["a"])], "messages[1]['content'] is a list"),
        ([QUESTION, answer_with(called('{"a": NaN}'))], "messages[1].tool_calls[0].function.arguments: not"),
        (
            [QUESTION, answer_with(called(DEEP))],
            "messages[1].tool_calls[0].function.arguments: not valid JSON",
        ),
        (["hi", answer_with(WEATHER_CALL)], "messages[0]: a message must be a dict"),
        ([{"content": "x"}, answer_with(WEATHER_CALL)], "messages[0]: the role must be one of"),
    ],
)
def test_names_wrong_conversation_with_calls_by_its_field(renderer, messages, text):
    for own in (renderer, vision_renderer()):
        assert f"task 0: {text}" in fault(own, {"messages": messages})


@pytest.mark.parametrize(
    ("row", "where"),
    [
        ({"conversations": [{"from": "alien", "value": "a"}]}, "conversations[0].from"),
        ({"conversations": [{"from": ["human"], "value": "a"}]}, "conversations[0].from"),
        ({"tools": DEEP, "prompt": "a", "completion": "b"}, "tools: not valid JSON"),
        ({"tools": '[{"a": NaN}]', "prompt": "a", "completion": "b"}, "tools: not valid JSON"),
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
def test_names_what_is_wrong_by_its_field(renderer, row, where):
    assert f": {where}" in fault(renderer, row)


def test_rejects_tools_that_a_template_does_not_show():
    silent = Renderer.from_bundle(byte_bundle())
    assert "tools" in fault(silent, {"tools": [WEATHER], "prompt": "a", "completion": "b"})


def test_skips_columns_where_they_are_named(renderer):
    row = {"prompt": "a", "completion": "b", "source": "web", "id": 7}
    assert "unknown key" in fault(renderer, row)
    source = tg.tasks.SequenceTasks([row])
    found = records(prepare(source, renderer, kind="sft", ignore=["source", "id"]))
    assert found == tokens_of(renderer, {"prompt": "a", "completion": "b"})
    with pytest.raises(InvalidRequestError) as caught:
        prepare(source, renderer, kind="sft", ignore=["source", "id", "sorce"])
    assert caught.value.field == "ignore"
