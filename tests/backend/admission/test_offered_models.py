import os
import shutil
import weakref

import pytest

from backend.admission.offered_models import FileCatalog
from backend.config import ServiceConfig
from backend.planning.wishes import OfferedModel
from backend.settings.served_models import PACKAGED_MODELS
from tinkergym.errors import UnknownModelError


@pytest.fixture
def config(tmp_path):
    return ServiceConfig(data_dir=tmp_path / "data")


@pytest.fixture
def checkpoint(config):
    """A full-parameter checkpoint of some tenant's job: a model directory like any other."""
    directory = config.jobs_dir / "job-1" / "checkpoints" / "step-000001"
    shutil.copytree(PACKAGED_MODELS["nano"], directory)
    return directory


def test_names_a_models_directory(config, checkpoint, tmp_path):
    elsewhere = tmp_path / "downloaded"
    shutil.copytree(checkpoint, elsewhere)
    assert FileCatalog(config).renderer(str(elsewhere)).context_length > 0
    assert FileCatalog(config).facts(str(elsewhere)).vocabulary_size > 0


@pytest.mark.parametrize("way", ["straight", "round about", "by a link"])
def test_leads_by_no_path_to_the_checkpoints_of_others(config, checkpoint, tmp_path, way):
    link = tmp_path / "link"
    link.symlink_to(checkpoint)
    path = {
        "straight": checkpoint,
        "round about": tmp_path / "data" / ".." / os.path.relpath(checkpoint, tmp_path),
    }
    with pytest.raises(UnknownModelError):
        FileCatalog(config).renderer(str(path.get(way, link)))
    with pytest.raises(UnknownModelError):
        FileCatalog(config).facts(str(path.get(way, link)))


def test_bounds_memory_for_a_folder_named_in_ever_new_ways(config, checkpoint, tmp_path):
    elsewhere = tmp_path / "downloaded"
    shutil.copytree(checkpoint, elsewhere)
    catalog = FileCatalog(config)
    names = [f"{tmp_path}/{'./' * times}downloaded" for times in range(40)]
    first, *_ = kept = [weakref.ref(catalog.renderer(name)) for name in names]
    assert first() is None
    assert sum(bundle() is not None for bundle in kept) == 32
    assert catalog.renderer(names[-1]) is kept[-1]()


def test_gives_a_folder_one_name_however_written(config, tmp_path, monkeypatch):
    folder = tmp_path / "models" / "small"
    folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    ways = [f"{folder}", f"{folder}/", f"/{folder}", f"{folder}/.", "models/small", "~/models/small", "link"]
    assert {FileCatalog(config).known_as(way) for way in ways} == {str(folder)}


@pytest.mark.parametrize("name", ["nano", "Qwen/Qwen3-0.6B", "/no/such/folder/", "~nobody-here/x", "a\0b"])
def test_keeps_the_name_of_what_is_no_folder(config, name):
    assert FileCatalog(config).known_as(name) == name


def test_keeps_an_offered_name_though_a_folder_shares_it(config, tmp_path, monkeypatch):
    (tmp_path / "nano").mkdir()
    monkeypatch.chdir(tmp_path)
    assert FileCatalog(config).known_as("nano") == "nano"
    closed = config.model_copy(update={"allow_any_model": False})
    assert FileCatalog(closed).known_as(f"{tmp_path}/nano/") == f"{tmp_path}/nano/"


def test_finds_operators_models_anywhere(config, checkpoint):
    offering = config.model_copy(update={"models": {"tuned": OfferedModel(path=str(checkpoint))}})
    assert FileCatalog(offering).renderer("tuned").model == "tuned"


def test_rereads_an_export_that_is_changed_in_place(config, checkpoint, tmp_path):
    elsewhere = tmp_path / "exported"
    shutil.copytree(checkpoint, elsewhere)
    catalog = FileCatalog(config)
    assert catalog.renderer(str(elsewhere)).trained_with is None
    (elsewhere / "tinkergym.json").write_text('{"system_prompt": "Count."}')
    assert catalog.renderer(str(elsewhere)).trained_with.system_prompt == "Count."
