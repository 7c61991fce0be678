import os
import stat

import pytest

from backend.errors import StartError
from backend.private_folder import make_private


def test_a_new_folder_is_entered_by_its_owner_only_whatever_its_parents_are(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    folder = make_private(shared / "ours")
    assert (stat.S_IMODE(folder.stat().st_mode), folder.stat().st_uid) == (0o700, os.getuid())
    assert make_private(folder) == folder


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o710, 0o1700 | 0o002])
def test_a_folder_that_others_can_enter_is_refused(tmp_path, mode):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(StartError, match="other users") as caught:
        make_private(folder)
    assert caught.value.field == "data_dir"
    assert stat.S_IMODE(folder.stat().st_mode) == mode


def test_a_link_that_somebody_put_in_its_place_is_refused(tmp_path):
    (tmp_path / "theirs").mkdir(mode=0o700)
    (tmp_path / "ours").symlink_to(tmp_path / "theirs")
    with pytest.raises(StartError, match="not a folder of this user"):
        make_private(tmp_path / "ours")


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives folders away")
def test_a_folder_of_another_user_is_refused(tmp_path):
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 65534, 65534)
    with pytest.raises(StartError, match="not a folder of this user"):
        make_private(tmp_path / "theirs")
