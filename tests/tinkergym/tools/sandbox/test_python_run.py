import os
import re
import sys
import threading
from pathlib import Path

import psutil
import pytest

from tinkergym.errors import ToolError
from tinkergym.tools import PythonTool
from tinkergym.tools.sandbox import python_run
from tinkergym.tools.sandbox.python_run import Limits, best_isolation, run_python

LEVELS = [
    "limits",
    pytest.param(
        "namespaces",
        marks=pytest.mark.skipif(
            sys.platform != "linux" or best_isolation() != "namespaces",
            reason="this machine offers no namespaces",
        ),
    ),
]


SMALL = Limits(wall_seconds=30, cpu_seconds=1, memory_megabytes=256, file_megabytes=1)


def call(code, **settings):
    return PythonTool(**settings).call({"code": code})


def orphans():
    """Processes of sandboxes whose launcher is gone and that do not end.

    Other tests may run sandboxes at the same time, and the kernel ends what is in one after its launcher.
    """
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if b"sandbox/launcher.py" in (process / "cmdline").read_bytes() and parent == 1:
                found.append(psutil.Process(int(process.name)))
        except (OSError, psutil.Error):
            continue
    return psutil.wait_procs(found, timeout=120)[1]


@pytest.fixture(params=LEVELS)
def isolation(request):
    return request.param


@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.create_connection(('127.0.0.1', PORT), 5)",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:PORT', timeout=5)",
        "import os; open(os.path.join(HOME, 'x'), 'w')",
        "import os; os.rmdir(FOLDER)",
        "import os; os.rename(FOLDER, FOLDER + '2')",
        "import os; os.kill(PARENT, 9)",
    ],
)
def test_isolates_code_from_network_files_and_processes(code, isolation, tmp_path):
    import socket

    folder = tmp_path / "folder"
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        for name, value in {
            "PORT": server.getsockname()[1],
            "HOME": repr(str(tmp_path)),
            "FOLDER": repr(str(folder)),
            "PARENT": os.getpid(),
        }.items():
            code = code.replace(name, str(value))
        with pytest.raises(ToolError):
            call(code, isolation=isolation)
    assert folder.exists()
    assert list(tmp_path.iterdir()) == [folder]


def test_hides_our_variables_and_modules_from_code(isolation, monkeypatch):
    monkeypatch.setenv("TINKERGYM_API_KEY", "secret")
    assert "secret" not in call("import os; dict(os.environ)", isolation=isolation)
    with pytest.raises(ToolError):
        call("import numpy", isolation=isolation)


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        pytest.param("while True: pass", "cpu", marks=pytest.mark.full("ends more easily than the next")),
        ("x = 10 ** 10 ** 10", "cpu"),
        ("x = bytearray(1 << 29)", "raised"),
        ("open('big', 'wb').write(bytes(2 << 20))", "raised"),
        ("import os; os.abort()", "killed"),
    ],
)
def test_ends_run_at_its_limits(code, ending, isolation):
    run = run_python(code, SMALL, isolation=isolation)
    assert (run.ending, run.isolation) == (ending, isolation)


def test_counts_time_that_passes_without_computing_too(isolation):
    with pytest.raises(ToolError):
        call("import time; print('first'); time.sleep(1000)", isolation=isolation, wall_seconds=0.3)


def test_cuts_endless_output(isolation):
    with pytest.raises(ToolError) as caught:
        call("while True: print('x' * 1000)", isolation=isolation, wall_seconds=0.3, output_characters=1000)
    assert len(str(caught.value)) < 1300


@pytest.mark.skipif(best_isolation() != "namespaces", reason="this machine offers no namespaces")
def test_leaves_nothing_started_alive_and_keeps_fork_bomb_small():
    code = "import os\nif os.fork() == 0:\n    os.setsid()\n    while True: pass\nprint('parent')"
    assert run_python(code, Limits(cpu_seconds=60)).output == "parent\n"
    run = run_python("import os\nwhile True: os.fork()", Limits(processes=8))
    assert run.ending == "raised"
    assert "BlockingIOError" in run.output
    assert not orphans()


@pytest.mark.skipif(best_isolation() != "namespaces", reason="this machine offers no namespaces")
def test_limits_the_memory_of_all_processes_together():
    limits = Limits(cpu_seconds=60, wall_seconds=60, memory_megabytes=128)
    each_its_own = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        block = b"x" * (60 << 20)
        time.sleep(60)
time.sleep(60)
"""
    assert run_python(each_its_own, limits).ending == "memory"
    # Pages that a fork shares are there once, however many processes see them.
    shared = """
import os
block = b"x" * (40 << 20)
for _ in range(8):
    if os.fork() == 0:
        os._exit(block.count(b"y"))
for _ in range(8):
    assert os.wait()[1] == 0
print("done")
"""
    assert run_python(shared, limits).output == "done\n"


@pytest.mark.skipif(best_isolation() != "namespaces", reason="this machine offers no namespaces")
@pytest.mark.parametrize(
    "call",
    [
        "os.memfd_create('x')",
        "libc.shmget(0, 4096, 0o1600)",
        "libc.semget(0, 100, 0o1600)",
        "libc.msgget(0, 0o1600)",
        "libc.syscall(425, 8, bytes(120))",
        "mmap.mmap(-1, 4096).write(b'x')",
        "open('/dev/zero').fileno()",
    ],
)
def test_rejects_memory_that_no_process_is_charged_for(call):
    code = f"import ctypes, mmap, os\nlibc = ctypes.CDLL(None, use_errno=True)\nresult = {call}\n"
    code += "if result < 0:\n    raise PermissionError(ctypes.get_errno())"
    run = run_python(code)
    assert run.ending == "raised"
    assert re.search("PermissionError|No such file", run.output)


@pytest.mark.skipif(best_isolation() != "namespaces", reason="this machine offers no namespaces")
def test_maps_memory_of_a_file_and_of_its_own():
    code = """
import mmap
with open("f", "wb+") as file:
    file.truncate(4096)
    mmap.mmap(file.fileno(), 4096)[:1] = b"x"
    mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)[:1] = b"x"
    print(file.read(1))
"""
    assert run_python(code).output == "b'x'\n"


@pytest.mark.skipif(best_isolation() != "namespaces", reason="this machine offers no namespaces")
def test_limits_the_number_of_files():
    code = "for number in range(11_000):\n    open(str(number), 'w').close()"
    assert "No space left" in run_python(code).output


@pytest.mark.skipif(best_isolation() != "namespaces", reason="this machine offers no namespaces")
def test_hides_files_of_this_machine():
    for path in (__file__, "/etc/passwd", "/proc/1/environ", "/sys"):
        assert call(f"import os; os.path.exists({path!r})") == "False"


def test_keeps_simultaneous_runs_apart(isolation):
    answers = {}

    def work(number):
        answers[number] = call(f"open('n', 'w').write('{number}'); open('n').read()", isolation=isolation)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: repr(str(number)) for number in range(6)}


def test_leaves_no_folder_and_no_process_behind(isolation, monkeypatch, tmp_path):
    monkeypatch.setattr(python_run.tempfile, "tempdir", str(tmp_path))
    before = psutil.Process().children()  # which may have others at any time, as a database has
    call("open('x', 'w').write('x')", isolation=isolation)
    assert not list(tmp_path.iterdir())
    # A child that nobody waited for would still be listed, as a zombie.
    assert set(psutil.Process().children()) <= set(before)
