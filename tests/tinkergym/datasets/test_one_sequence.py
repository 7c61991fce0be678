"""The same conversation is the same token sequence, whatever holds it."""

from __future__ import annotations

import copy
import datetime
import json
import random
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import tinkergym as tg
from benchmarks.data_containers import anchor, random_rows, unequal, with_images
from tests.tinkergym.datasets.test_layouts import CALLING, vision_renderer
from tests.tinkergym.datasets.test_stored_episodes import episodes
from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.prepare import prepare
from tinkergym.errors import InvalidRequestError
from tinkergym.testing import byte_bundle

THINKING = CALLING.replace(
    "{{ m.content }}",
    "{% if m.reasoning_content %}<t>{{ m.reasoning_content }}</t>{% endif %}{{ m.content }}",
).replace("t.function.name", "t | tojson")


@pytest.fixture(scope="module")
def model():
    bundle = byte_bundle(chat_template=THINKING, context_length=10**6)
    return Renderer.from_bundle(bundle)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_gives_same_tokens_from_every_container(model, seed):
    seen = Counter()
    assert unequal(random_rows(random.Random(seed), 5), model, seen) == []
    assert seen["rendered"] >= 3


@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_gives_same_images_from_every_container(seed):
    rng, seen = random.Random(seed), Counter()
    assert unequal(with_images(random_rows(rng, 4), rng), vision_renderer(THINKING), seen) == []
    assert seen["rendered"]


def test_gives_same_tokens_for_exported_episodes_read_back(model, tmp_path):
    rows = list(episodes(0.0, 1.0, turns=2).to_sft())
    wanted = prepare(rows, model, kind="sft").bodies
    (tmp_path / "a").write_text("\n".join(map(json.dumps, rows)))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "b")
    assert all(prepare(tmp_path / name, model, kind="sft").bodies == wanted for name in "ab")


@pytest.mark.parametrize("value", [b"x", float("nan"), "\ud800", [{"at": datetime.date(2000, 1, 1)}]])
def test_refuses_arguments_and_tools_beyond_json(model, value):
    row = anchor()
    row["messages"][1]["tool_calls"][0]["function"]["arguments"]["city"] = value
    other = copy.deepcopy(anchor())
    other["tools"][0]["function"]["parameters"]["properties"]["city"]["default"] = value
    for one in (row, other):
        with pytest.raises(InvalidRequestError) as caught:
            prepare([one], model, kind="sft")
        assert caught.value.field == "data"


def test_reads_objects_in_text_columns_of_csv_as_text(model, tmp_path):
    (tmp_path / "a").write_text('prompt,completion\n?,"{""name"": ""Ann""}"\n?,"[{""name"": ""Ann""}]"\n')
    rows = [{"prompt": "?", "completion": text} for text in ('{"name": "Ann"}', '[{"name": "Ann"}]')]
    assert prepare(tmp_path / "a", model, kind="sft").bodies == prepare(rows, model, kind="sft").bodies


def test_finds_images_in_folder_of_data(tmp_path):
    renderer = vision_renderer(THINKING)
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    content = [{"type": "image", "image": "a.png"}, {"type": "text", "text": "?"}]
    row = {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": "!"}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    assert prepare(tmp_path, renderer, kind="sft").images


def test_names_layout_of_paired_rows(model):
    rows = [{"prompt": "?", "completion": str(good), "label": good} for good in (True, False)]
    assert list(prepare(rows, model, kind="preference").layouts.values()) == [1]
    assert all(prepare(rows, model, kind="preference").layouts)


def test_leaves_out_optional_null_of_a_call(model):
    short, null = anchor(), anchor()
    short["messages"][1]["tool_calls"][0]["function"]["arguments"] = {"city": "x"}
    null["messages"][1]["tool_calls"][0]["function"]["arguments"] = {"city": "x", "unit": None}
    assert prepare([short], model, kind="sft").bodies == prepare([null], model, kind="sft").bodies


@pytest.mark.parametrize("text", ["%s", "[{}, %s]", '{"messages": "x", "tools": "[%s]"}'])
def test_refuses_key_with_two_values(model, tmp_path, text):
    row = '{"prompt": "?", "completion": "a", "completion": "b"}'
    (tmp_path / "a").write_text(text % (row.replace('"', '\\"') if "messages" in text else row))
    with pytest.raises(InvalidRequestError):
        prepare(tmp_path / "a", model, kind="sft")
    (fault,) = tg.datasets.describe(tmp_path / "a", model, kind="sft").faults
    assert fault.partition(":")[0] == ("row 2" if text[0] == "[" else "line 1")


def test_reads_key_that_repeats_its_value(model, tmp_path):
    (tmp_path / "a").write_text('{"prompt": "?", "completion": "b", "completion": "b"}')
    row = {"prompt": "?", "completion": "b"}
    assert prepare(tmp_path / "a", model, kind="sft").bodies == prepare([row], model, kind="sft").bodies


def test_keeps_integers_next_to_fractions_in_parquet(model, tmp_path):
    rows = [anchor(), anchor()]
    rows[0]["tools"] = rows[1]["tools"] = json.dumps(rows[0]["tools"])
    for row, days in zip(rows, (1, 2.5), strict=True):
        row["messages"][1]["tool_calls"][0]["function"]["arguments"] = {"city": "x", "days": days}
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a")
    read = prepare(tmp_path / "a", model, kind="sft")
    assert read.bodies == prepare(rows, model, kind="sft").bodies
    assert tg.datasets.describe(tmp_path / "a", model).notes == ()


def test_notes_numbers_that_arrow_may_have_changed(model, tmp_path):
    rows = [anchor(), anchor()]
    for row, weight in zip(rows, (1, 2.5), strict=True):
        row["messages"][1]["tool_calls"][0]["function"]["arguments"] = {"weight": weight}
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a")
    report = tg.datasets.describe(tmp_path / "a", model)
    assert (report.ok, len(report.notes)) == (True, 1)


def test_reads_labels_of_csv(model, tmp_path):
    (tmp_path / "a").write_text("prompt,completion,label\n?,a,True\n?,b,false\n")
    rows = [{"prompt": "?", "completion": text, "label": text == "a"} for text in "ab"]
    read = prepare(tmp_path / "a", model, kind="preference").bodies
    assert read == prepare(rows, model, kind="preference").bodies
