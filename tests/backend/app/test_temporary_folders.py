import os
import subprocess
import sys
import time

import pytest

from backend.app.temporary_folders import owned, remove_leftovers
from tinkergym.tools.sandbox.python_run import FOLDER_PREFIX

LATER = time.time() + 7200.0


@pytest.fixture
def service_folder(tmp_path):
    return tmp_path / f"tinkergym-{os.getuid()}-0123456789ab"


def test_removes_its_folder_however_the_owner_ends(service_folder):
    with pytest.raises(ZeroDivisionError), owned(service_folder):
        (service_folder / "socket").touch()
        raise ZeroDivisionError
    assert not service_folder.exists()


def test_keeps_the_folder_of_a_living_service(service_folder, tmp_path):
    with owned(service_folder):
        remove_leftovers(tmp_path, now=LATER)
        assert service_folder.exists()


def test_removes_the_folder_of_a_killed_service(service_folder, tmp_path):
    (service_folder / "ray").mkdir(parents=True)
    (service_folder / "owner.lock").touch()
    remove_leftovers(tmp_path)  # It may be starting.
    assert service_folder.exists()
    remove_leftovers(tmp_path, now=LATER)
    assert not service_folder.exists()


def test_removes_empty_folders_only_without_a_lock(service_folder, tmp_path):
    service_folder.mkdir()
    other = tmp_path / f"tinkergym-{os.getuid()}-full"
    (other / "ray").mkdir(parents=True)
    remove_leftovers(tmp_path, now=LATER)
    assert list(tmp_path.iterdir()) == [other]


def test_removes_sandboxes_of_dead_processes_only(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid in (gone.pid, os.getpid()):
        (tmp_path / f"{FOLDER_PREFIX}{pid}-abc" / "inside").mkdir(parents=True)
    remove_leftovers(tmp_path, now=LATER)
    assert [left.name for left in tmp_path.iterdir()] == [f"{FOLDER_PREFIX}{os.getpid()}-abc"]
