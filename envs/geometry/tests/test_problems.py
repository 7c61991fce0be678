import io

import numpy as np
import pytest
from PIL import Image
from tinkergym_geometry.drawn import SIZES, drawn_tasks
from tinkergym_geometry.make_data import make as make_data
from tinkergym_geometry.problems import ProblemsEnv
from tinkergym_geometry.records import fitted, problem_of

import tinkergym as tg
from tinkergym.errors import InvalidRequestError
from tinkergym.testing import EnvContract
from tinkergym.tool_calls.call import ToolCall
from tinkergym.tools import render_calls

NAME = "geometry/Problems-v0"


class TestProblems(EnvContract):
    def make(self):
        return tg.make(NAME)


class TestProblemsWithTools(EnvContract):
    def make(self):
        return tg.make("geometry/ProblemsWithTools-v0")


def png(width=30, height=20, color="red"):
    file = io.BytesIO()
    Image.new("RGB", (width, height), color).save(file, format="PNG")
    return file.getvalue()


def record(**changes):
    return {
        "images": [{"bytes": png(), "path": None}],
        "problem": "<image>Find $x$.",
        "answer": "3",
        **changes,
    }


@pytest.fixture
def geometry3k(tmp_path, monkeypatch):
    """A folder of data with a dataset in the layout that geometry3k has on the hub."""
    make_data(tmp_path / "own" / "geometry3k")
    monkeypatch.setenv("TINKERGYM_DATA", str(tmp_path))
    return "own/geometry3k"


def test_reads_dataset_in_layout_of_geometry3k_from_parquet_files(geometry3k):
    pq = pytest.importorskip("pyarrow.parquet")
    from_file, drawn = (ProblemsEnv(data, "test") for data in (geometry3k, "drawn"))
    file = next(iter(from_file.tasks._files))
    assert str(pq.read_schema(file).field("images").type).startswith("list<element: struct<bytes: binary")
    assert len(from_file.tasks) == len(drawn.tasks) == SIZES["test"]
    for seed in range(5):
        one, other = (env.reset(seed=seed)[0] for env in (from_file, drawn))
        assert one["text"] == other["text"] == "Find the area."
        assert (one["images"][0] == other["images"][0]).all()
        assert from_file.gold_action() == drawn.gold_action()
        assert from_file.step(drawn.gold_action())[1] == 1.0


def test_reads_images_that_a_library_has_decoded_too(tmp_path, monkeypatch, geometry3k):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"images": datasets.Sequence(datasets.Image()), "problem": datasets.Value("string")}
        | {"answer": datasets.Value("string")}
    )
    rows = [record(images=[{"bytes": png(), "path": None}] * 2)]
    saved = datasets.DatasetDict({"test": datasets.Dataset.from_list(rows, features=features)})
    saved.save_to_disk(tmp_path / "saved")
    observation, _ = tg.make(NAME, data="saved", split="test", side=30).reset(seed=0)
    assert observation["text"] == "Find $x$."
    assert len(observation["images"]) == 2
    assert observation["images"][0].shape == (30, 30, 3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"problem": ""}, "'problem'"),
        ({"problem": "<image>"}, "no text in 'problem'"),
        ({"problem": "<image><image>Find $x$."}, "more <image>s"),
        ({"answer": None}, "'answer'"),
        ({"images": []}, "'images'"),
        ({"images": [{"bytes": None, "path": "/etc/passwd"}]}, "bytes"),
        ({"images": [b"GIF89a"]}, "PNG"),
        ({"images": [{"bytes": png()[:60], "path": None}]}, "row 7"),
    ],
)
def test_rejects_row_of_another_format_with_its_number(changes, words):
    with pytest.raises(InvalidRequestError, match=words) as refused:
        problem_of(record(**changes), 7, 64)
    assert refused.value.field == "data"


def test_fits_pictures_whole_into_a_white_square():
    pixels = fitted(png(40, 20, "black"), 20)
    assert (pixels[5:15] == 0).all()
    assert (pixels[:5] == 255).all()
    assert (pixels[15:] == 255).all()
    small = np.zeros((64, 64, 3), np.uint8)
    assert (fitted(small, 64) == small).all()


@pytest.mark.parametrize(
    ("gold", "said", "reward"),
    [
        ("3", "3.0", 1.0),
        ("3", r"so \boxed{3}", 1.0),
        ("3", "4", 0.0),
        ("3", "three", 0.0),
        (r"2 \sqrt{2}", r"\boxed{\sqrt{8}}", 1.0),
        (r"2 \sqrt{2}", "2", 0.0),
    ],
)
def test_compares_answers_as_numbers_or_as_mathematics(gold, said, reward, tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist([record(answer=gold)]), tmp_path / "one.parquet")
    monkeypatch.setenv("TINKERGYM_DATA", str(tmp_path))
    env = ProblemsEnv("one.parquet", None)
    env.reset(seed=0)
    assert env.step(said)[1] == reward
    env.reset(seed=0)
    assert env.step(env.gold_action())[1] == 1.0


def test_draws_no_picture_in_both_splits():
    pictures = {split: {task["images"][0]["bytes"] for task in drawn_tasks(split)} for split in SIZES}
    assert {split: len(found) for split, found in pictures.items()} == SIZES
    assert not pictures["train"] & pictures["test"]


def test_draws_swapped_pictures_of_other_problems_anew():
    right, swapped = ProblemsEnv(), ProblemsEnv(swapped=True)
    shown = set()
    for seed in range(20):
        observation = swapped.reset(seed=seed, options={"task_index": 4})[0]
        other = right.reset(seed=seed, options={"task_index": 4})[0]
        assert swapped.gold_action() == right.gold_action()
        assert (observation["images"][0] != other["images"][0]).any()
        shown.add(observation["images"][0].tobytes())
    assert len(shown) > 10


def test_answers_calculator_in_text_without_showing_the_picture_again():
    env = tg.make("geometry/ProblemsWithTools-v0")
    question, _ = env.reset(options={"task_index": 2})
    assert len(question["images"]) == 1
    expression = env.get_wrapper_attr("tasks")[2]["expression"]
    call = render_calls([ToolCall("calculator", {"expression": expression})], "hermes")
    observation, reward, *_, info = env.step(call)
    assert (observation["images"], reward, info["metrics"]["tool_calls"]) == ((), 0.0, 1.0)
    assert env.step(observation["text"].splitlines()[1])[1] == 1.0


@pytest.mark.parametrize(
    ("settings", "field"), [({"side": 0}, "side"), ({"data": "nothing"}, "data"), ({"split": "dev"}, "split")]
)
def test_rejects_settings_that_name_nothing(settings, field):
    with pytest.raises(InvalidRequestError) as refused:
        tg.make(NAME, **settings)
    assert refused.value.field == field
