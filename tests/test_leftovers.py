"""The rule that no test leaves anything behind, on a file whose tests do."""

import re

pytest_plugins = ["pytester"]

FILE = '''
import logging, os, queue, socket, subprocess, sys, threading, types
import pytest

kept = []
go_on = threading.Event()
# The real one takes seconds to import.
sys.modules["torch"] = types.SimpleNamespace(get_num_threads=lambda: 1 + len(more_threads))
more_threads = []

def thread(): threading.Thread(target=threading.Event().wait, name="mine", daemon=True).start()
def process(): kept.append(subprocess.Popen(["sleep", "5"]))
def listener(): kept.append(socket.create_server(("127.0.0.1", 0)))
def logger(): logging.getLogger("tinkergym.of_a_test").setLevel(logging.DEBUG)
def new_variable(): os.environ["TINKERGYM_OF_A_TEST"] = "1"
def no_variable(): del os.environ["TINKERGYM_LEFTOVER_SECONDS"]
def threads(): more_threads.append(1)

@pytest.mark.parametrize("leave", [thread, process, listener, logger, new_variable, no_variable, threads])
def test_leaves(leave):
    leave()

def test_ends_all_that_it_starts(caplog, monkeypatch):
    monkeypatch.setenv("TINKERGYM_OF_ANOTHER", "1")
    caplog.set_level(logging.DEBUG, "tinkergym.of_another")
    threading.Thread(target=threading.Event().wait, args=(0.05,)).start()
    subprocess.run(["true"], check=True)
    socket.create_server(("127.0.0.1", 0)).close()

@pytest.fixture(scope="module")
def server():
    """Starts a thread for each task, as servers do for each connection."""
    tasks = queue.Queue()
    def serve():
        while (task := tasks.get()) is not None:
            threading.Thread(target=task, name="connection").start()
    thread = threading.Thread(target=serve)
    thread.start()
    yield tasks
    tasks.put(None)
    thread.join()
    go_on.set()

def test_asks_a_server_of_the_file(request):
    began = threading.Event()
    request.getfixturevalue("server").put(lambda: began.set() or go_on.wait())
    began.wait()

@pytest.fixture(scope="module")
def leaking():
    threading.Thread(target=threading.Event().wait, name="of the file", daemon=True).start()

def test_uses_a_fixture_that_leaves_a_thread(leaking):
    pass
'''


def test_fails_tests_and_fixtures_that_leave_something(pytester, monkeypatch):
    monkeypatch.setenv("TINKERGYM_LEFTOVER_SECONDS", "0.5")
    monkeypatch.delenv("CI", raising=False)  # there, pytest repeats whole messages in its summary
    # A process, because what these tests leave would stay in this one.
    ran = pytester.runpytest_subprocess("-p", "tests.leftovers", "-rE", pytester.makepyfile(FILE))
    ran.assert_outcomes(passed=10, errors=8)
    blamed = re.findall(r"^ERROR \S+::(\S+)", ran.stdout.str(), re.MULTILINE)
    kinds = ("thread", "process", "listener", "logger", "new_variable", "no_variable", "threads")
    assert blamed == [*(f"test_leaves[{kind}]" for kind in kinds), "test_uses_a_fixture_that_leaves_a_thread"]
    said = [line.split()[0] for line in ran.outlines if re.match(r"  (thread|process|socket|setting) ", line)]
    assert said == ["thread", "process", "socket", *["setting"] * 4, "thread"]
