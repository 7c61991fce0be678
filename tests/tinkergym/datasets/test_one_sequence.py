"""The same conversation is the same token sequence, whatever holds it."""

from __future__ import annotations

import json
import random
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.data_containers import random_rows, unequal, with_images
from tests.tinkergym.datasets.test_layouts import CALLING, vision_renderer
from tests.tinkergym.datasets.test_stored_episodes import episodes
from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.prepare import prepare
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
