"""What children print, by whatever way, is bounded; its beginning and its end are kept."""

import subprocess
import sys

from backend.processes.bounded_log import BoundedLog

NOISE = """
import ctypes, os
os.write(1, b"it begins\\n")
for number in range(2000):
    print("printed", number, flush=True)
for number in range(2000):
    os.write(2, b"written %d\\n" % number)
libc = ctypes.CDLL(None)
for number in range(2000):
    libc.dprintf(1, b"by a C library\\n")
os.write(1, b"it ends\\n")
"""


def run(log, code, file_bytes):
    with BoundedLog(log, file_bytes) as output:
        child = subprocess.Popen(
            [sys.executable, "-c", code], stdout=output.descriptor, stderr=output.descriptor
        )
    assert child.wait(timeout=60) == 0
    output.join(60.0)


def test_bounds_output_of_endlessly_printing_child_to_three_files(tmp_path):
    log = tmp_path / "noisy.log"
    run(log, NOISE, 10_000)
    sizes = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    assert sorted(sizes) == ["noisy.log", "noisy.log.1", "noisy.log.first"]
    assert max(sizes.values()) <= 10_000
    assert (tmp_path / "noisy.log.first").read_text().startswith("it begins\n")
    assert log.read_text().endswith("by a C library\nit ends\n")


def test_keeps_quiet_childs_output_whole_and_appends_the_next_ones(tmp_path):
    log = tmp_path / "quiet.log"
    for word in ("first", "second"):
        run(log, f"print({word!r})", 10_000)
    assert log.read_text() == "first\nsecond\n"
    assert [file.name for file in tmp_path.iterdir()] == ["quiet.log"]


def test_keeps_child_running_when_its_log_cannot_be_rotated(tmp_path):
    log = tmp_path / "stuck.log"
    (tmp_path / "stuck.log.first").mkdir()
    (tmp_path / "stuck.log.first" / "something").touch()
    run(log, NOISE, 10_000)
    assert log.stat().st_size <= 10_000
