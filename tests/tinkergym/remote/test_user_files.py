import os

import pytest

from backend.testing.scripted_service import ScriptedService
from tests.tinkergym.exports import Trained, learned  # noqa: F401
from tinkergym.errors import ConflictError


@pytest.fixture
def service():
    with ScriptedService(environments=["board/TicTacToeVs-v0"]) as service:
        yield service


@pytest.fixture
def trained(service, learned, connect):  # noqa: F811
    return Trained(service, learned(), connect)


def test_leaves_what_exists_untouched(trained, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(ConflictError, check=lambda error: error.code == "exists"):
        trained.job.export(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_removes_remains_of_killed_export_but_not_running_one(trained, tmp_path):
    (tmp_path / ".out.unfinished-999999999").mkdir()
    (tmp_path / f".out.unfinished-{os.getppid()}").mkdir()
    trained.job.export(tmp_path / "out")
    assert sorted(p.name for p in tmp_path.glob(".out*")) == [f".out.unfinished-{os.getppid()}"]
