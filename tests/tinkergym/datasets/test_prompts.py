"""Prompts of rows have the ids of training, in every layout that training reads."""

import pytest

import tinkergym as tg
from tests.tinkergym.datasets.test_layouts import CALLING
from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.prepare import prepare
from tinkergym.datasets.prompts import prompt_rows
from tinkergym.schema.uploaded_data import DataChunk
from tinkergym.testing import byte_bundle
from tinkergym.testing.bundles import FAMILIES, family_bundle

CALL = {"type": "function", "function": {"name": "look", "arguments": {"at": "sky"}}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "one?"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three?"},
    {"role": "assistant", "content": "four"},
]
SFT = {
    "messages": {"messages": TALK},
    "prompt and completion": {"prompt": "sky?", "completion": "blue"},
    "Alpaca": {"instruction": "Add.", "input": "1 and 2", "output": "3"},
    "ShareGPT": {"conversations": [{"from": "human", "value": "sky?"}, {"from": "gpt", "value": "blue"}]},
    "called": {
        "tools": [TOOL],
        "messages": [
            {"role": "user", "content": "sky?"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": "blue"},
            {"role": "assistant", "content": "It is blue."},
        ],
    },
    "calling": {
        "tools": [TOOL],
        "messages": [
            {"role": "user", "content": "sky?"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
        ],
    },
}
PREFERENCES = {
    "columns": {"prompt": "sky?", "chosen": "blue", "rejected": "red"},
    "hh-rlhf": {
        "chosen": "\n\nHuman: sky?\n\nAssistant: blue",
        "rejected": "\n\nHuman: sky?\n\nAssistant: red",
    },
}


@pytest.fixture(scope="module")
def renderer():
    return Renderer.from_bundle(byte_bundle(chat_template=CALLING))


def prompts(renderer, *rows, **options):
    return list(prompt_rows(tg.tasks.SequenceTasks(list(rows)), renderer, **options))


def trained(renderer, row, kind):
    prepared = prepare(tg.tasks.SequenceTasks([row]), renderer, kind=kind, answers="last")
    (name,) = prepared.manifest.chunks
    return DataChunk.model_validate_json(prepared.bodies[name]).records[0][0]


@pytest.mark.parametrize(
    ("kind", "row"),
    [("sft", row) for row in SFT.values()] + [("preference", row) for row in PREFERENCES.values()],
)
def test_asks_with_the_ids_before_the_trained_answer(renderer, kind, row):
    (prompt,) = prompts(renderer, row)
    assert prompt.fault == ""
    sequence = trained(renderer, row, kind)
    assert list(prompt.token_ids) == sequence.token_ids[: sequence.trained[-1][0]]


@pytest.mark.parametrize("family", FAMILIES)
def test_asks_in_every_family_as_training_does(family):
    own = Renderer.from_bundle(family_bundle(family))
    thought = "<think>\nq\n</think>\n\n{}"
    answers = [{"role": "assistant", "content": thought.format(text)} for text in ("two", "four")]
    row = {"messages": [TALK[1], answers[0], TALK[3], answers[1]]}
    (prompt,) = prompts(own, row)
    sequence = trained(own, row, "sft")
    assert list(prompt.token_ids) == sequence.token_ids[: sequence.trained[-1][0]]


def test_continues_text_as_training_reads_it(renderer):
    (prompt,) = prompts(renderer, {"text": "Once upon"})
    whole = trained(renderer, {"text": "Once upon"}, "sft").token_ids
    assert list(prompt.token_ids) == whole[: len(prompt.token_ids)]


def test_asks_rows_that_have_no_answer(renderer):
    asked = [{"prompt": "sky?"}, {"messages": TALK[:4]}, {"instruction": "Add.", "input": "1 and 2"}]
    answered = [SFT["prompt and completion"], SFT["messages"], SFT["Alpaca"]]
    alone, whole = prompts(renderer, *asked), prompts(renderer, *answered)
    assert [one.token_ids for one in alone] == [one.token_ids for one in whole]


def test_names_a_fault_in_its_row_only(renderer):
    rows = [{"prompt": "a"}, {"prompt": 3}, {"messages": TALK[:1]}, {"promt": "a"}, {"prompt": "b", "id": 4}]
    found = prompts(renderer, *rows, keep=["id"])
    assert [bool(row.fault) for row in found] == [False, True, True, True, False]
    assert [row.number for row in found] == list(range(5))
    assert (found[4].kept, found[0].kept) == ({"id": 4}, {})
    assert [row.number for row in prompts(renderer, *rows, keep=["id"], start=3)] == [3, 4]


@pytest.mark.parametrize(
    "row",
    [
        {"instruction": "a", "chosen": "b", "rejected": "c"},
        {"instruction": "a", "output": "b", "kto_tag": True},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "kto_tag": False},
    ],
)
def test_asks_what_preferences_are_about(renderer, row):
    (found,) = prompts(renderer, row)
    assert found.fault == ""
    assert found.token_ids == prompts(renderer, {"prompt": "a"})[0].token_ids


def test_asks_with_columns_that_are_kept_too(renderer):
    row = {"instruction": "Add.", "input": "1 and 2", "output": "3"}
    (found,) = prompts(renderer, row, keep=["input"])
    assert found.token_ids == prompts(renderer, row)[0].token_ids
    assert found.kept == {"input": "1 and 2"}


@pytest.mark.parametrize(
    "line", ['{"prompt": "a", "id": ' + "[" * 600 + "]" * 600 + "}", '{"instruction": "a", "history": 3}']
)
def test_names_faults_that_readers_stumble_over(renderer, tmp_path, line):
    (tmp_path / "rows.jsonl").write_text(line + '\n{"prompt": "next"}\n')
    found = list(prompt_rows(tmp_path / "rows.jsonl", renderer, keep=["id"]))
    assert [bool(one.fault) for one in found] == [True, False]


def test_keeps_half_characters_as_escapes(renderer):
    (found,) = prompts(renderer, {"prompt": "a", "id": "\ud800"}, keep=["id"])
    assert found.kept == {"id": "\\ud800"}
