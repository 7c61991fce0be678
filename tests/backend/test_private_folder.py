import os
import shlex
import stat
import subprocess

import pytest

from backend.errors import ConfigError
from backend.private_folder import make_private, refuse_changes_by_others


def test_makes_folder_for_its_owner_only_whatever_its_parents_are(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    folder = make_private(shared / "ours")
    assert (stat.S_IMODE(folder.stat().st_mode), folder.stat().st_uid) == (0o700, os.getuid())
    assert make_private(folder) == folder


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o710, 0o1700 | 0o002])
def test_rejects_folder_that_others_can_enter(tmp_path, mode):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        make_private(folder)
    assert caught.value.field == "data_dir"
    assert stat.S_IMODE(folder.stat().st_mode) == mode


def test_rejects_link_that_somebody_put_in_its_place(tmp_path):
    (tmp_path / "theirs").mkdir(mode=0o700)
    (tmp_path / "ours").symlink_to(tmp_path / "theirs")
    with pytest.raises(ConfigError, check=lambda error: error.code == "not_own"):
        make_private(tmp_path / "ours")


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives folders away")
def test_rejects_folder_of_another_user(tmp_path):
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 65534, 65534)
    with pytest.raises(ConfigError, check=lambda error: error.code == "not_own"):
        make_private(tmp_path / "theirs")


@pytest.mark.parametrize("mode", [0o777, 0o722, 0o770, 0o1777, 0o702])
def test_rejects_folder_others_can_change_with_command_that_fixes_it(tmp_path, mode):
    folder = tmp_path / "our data"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        refuse_changes_by_others(folder)
    assert caught.value.field == "data_dir"
    subprocess.run(shlex.split(caught.value.hint.split("`")[1]), check=True)
    refuse_changes_by_others(folder)


@pytest.mark.parametrize("mode", [0o777, 0o703])
def test_rejects_folder_replaceable_in_its_parent_by_naming_the_parent(tmp_path, mode):
    parent = tmp_path / "parent"
    (parent / "between" / "ours").mkdir(parents=True)
    parent.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        refuse_changes_by_others(parent / "between" / "ours")
    assert f"chmod go-w {parent}`" in caught.value.hint


def test_accepts_folder_in_shared_one_with_restricted_renaming(tmp_path):
    shared = tmp_path / "shared"
    (shared / "ours").mkdir(parents=True)
    shared.chmod(0o1777)
    refuse_changes_by_others(shared / "ours")


def test_accepts_parent_that_the_users_own_group_can_write_to(tmp_path):
    (tmp_path / "ours").mkdir()
    tmp_path.chmod(0o770)
    refuse_changes_by_others(tmp_path / "ours")


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives folders away")
@pytest.mark.parametrize("given", ["parent", "parent/ours"])
def test_rejects_folder_that_another_user_owns_or_contains(tmp_path, given):
    (tmp_path / "parent" / "ours").mkdir(parents=True)
    os.chown(tmp_path / given, 12345, 12345)
    with pytest.raises(ConfigError) as caught:
        refuse_changes_by_others(tmp_path / "parent" / "ours")
    assert f"chown 0 {tmp_path / given}`" in caught.value.hint
