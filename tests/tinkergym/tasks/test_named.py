import json

import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.tasks import named_tasks


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TINKERGYM_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("TINKERGYM_HUB_DATA", raising=False)
    sums = tmp_path / "data" / "sums"
    sums.mkdir(parents=True)
    (sums / "train.jsonl").write_text(json.dumps({"question": "1+1="}) + "\n")
    (tmp_path / "secret.jsonl").write_text("{}\n")
    return tmp_path


def test_finds_dataset_of_the_folder_by_its_name(folder):
    assert named_tasks("sums", split="train").read(0) == {"question": "1+1="}
    assert named_tasks("sums/train.jsonl").read(0) == {"question": "1+1="}


def test_prefers_what_a_pack_ships(folder, tmp_path):
    (tmp_path / "pack" / "sums").mkdir(parents=True)
    (tmp_path / "pack" / "sums" / "train.jsonl").write_text(json.dumps({"question": "shipped"}) + "\n")
    tasks = named_tasks("sums", shipped=tmp_path / "pack", split="train")
    assert tasks.read(0) == {"question": "shipped"}


@pytest.mark.parametrize(
    "name",
    ["../secret.jsonl", "sums/../../secret.jsonl", "/etc", "missing", "a\0b", "org/set", "a" * 300, "loop"],
)
def test_reaches_nothing_outside_folder_and_no_hub_unless_allowed(folder, name):
    (folder / "data" / "loop").symlink_to("loop")
    with pytest.raises(InvalidRequestError) as refused:
        named_tasks(name, split="train")
    assert refused.value.field == "data"


def test_follows_no_link_that_leads_out_of_the_folder(folder):
    (folder / "data" / "link.jsonl").symlink_to(folder / "secret.jsonl")
    with pytest.raises(InvalidRequestError):
        named_tasks("link.jsonl")


def test_keeps_files_in_folders_of_dataset_downloaded_from_hub(folder):
    for below, text in (("gsm8k/main", "main"), ("gsm8k/socratic", "socratic"), ("geometry3k/data", "data")):
        (folder / "data" / below).mkdir(parents=True)
        (folder / "data" / below / "train.jsonl").write_text(json.dumps({"question": text}) + "\n")
    assert named_tasks("gsm8k", split="train", config="socratic").read(0) == {"question": "socratic"}
    assert named_tasks("geometry3k", split="train", config="main").read(0) == {"question": "data"}


def test_rejects_folder_without_data_as_such(folder):
    (folder / "data" / "empty").mkdir()
    with pytest.raises(InvalidRequestError) as refused:
        named_tasks("empty", split="train")
    assert refused.value.field == "path"


@pytest.mark.parametrize("listing", ["{", "{}", "[]", '{"splits": 5}', '{"splits": [1]}', "[" * 100_000])
def test_rejects_broken_list_of_splits(folder, listing):
    (folder / "data" / "saved").mkdir()
    (folder / "data" / "saved" / "dataset_dict.json").write_text(listing)
    with pytest.raises(InvalidRequestError) as caught:
        named_tasks("saved", split="train")
    assert caught.value.field == "path"


@pytest.mark.parametrize("config", ["mian", "..", None])
def test_names_all_configurations_without_the_right_one(folder, config):
    for below in ("main", "socratic"):
        (folder / "data" / "gsm8k" / below).mkdir(parents=True)
        (folder / "data" / "gsm8k" / below / "train.jsonl").write_text("{}\n")
    with pytest.raises(InvalidRequestError) as refused:
        named_tasks("gsm8k", split="train", config=config)
    assert refused.value.field == "config"


@pytest.mark.parametrize("config", ["..", "../other", "/etc"])
def test_leads_by_no_configuration_out_of_the_dataset(folder, config):
    other = folder / "other"
    other.mkdir()
    (other / "train.jsonl").write_text("{}\n")
    assert named_tasks("sums", split="train", config=config).read(0) == {"question": "1+1="}
