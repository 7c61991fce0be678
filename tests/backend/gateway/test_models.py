import os
import shutil

import pytest

from backend.config import PACKAGED_MODELS, ServiceConfig
from backend.gateway.models import FileCatalog
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


def test_a_models_directory_can_be_named(config, checkpoint, tmp_path):
    elsewhere = tmp_path / "downloaded"
    shutil.copytree(checkpoint, elsewhere)
    assert FileCatalog(config).renderer(str(elsewhere)).context_length > 0


@pytest.mark.parametrize("way", ["straight", "round about", "by a link"])
def test_no_path_leads_to_the_checkpoints_of_others(config, checkpoint, tmp_path, way):
    link = tmp_path / "link"
    link.symlink_to(checkpoint)
    path = {
        "straight": checkpoint,
        "round about": tmp_path / "data" / ".." / os.path.relpath(checkpoint, tmp_path),
    }
    with pytest.raises(UnknownModelError, match="own folder holds no models"):
        FileCatalog(config).renderer(str(path.get(way, link)))


def test_what_the_operator_offers_may_lie_anywhere(config, checkpoint):
    offering = config.model_copy(update={"models": {"tuned": str(checkpoint)}})
    assert FileCatalog(offering).renderer("tuned").model == "tuned"
