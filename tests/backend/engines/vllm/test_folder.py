import stat
import subprocess
import sys

from backend.engines.vllm.folder import private_folder


def test_keeps_folder_private_and_removes_it_after_its_process(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = tmp_path / f"tinkergym-vllm-{ended.pid}-x"
    left.mkdir()
    (tmp_path / "tinkergym-vllm-notes").mkdir()
    folder = private_folder(disk=tmp_path)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([folder.name, "tinkergym-vllm-notes"])
    again = private_folder(disk=tmp_path)
    assert folder.is_dir()  # its process lives
    assert again != folder


def test_writes_to_disk_what_does_not_fit_into_shared_memory(tmp_path):
    assert private_folder(2**60, disk=tmp_path).parent == tmp_path
