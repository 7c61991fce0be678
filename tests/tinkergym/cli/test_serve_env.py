"""`tinkergym serve-env` as a program: what it prints, what ends it, what it refuses."""

import re
import signal
import socket
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import tinkergym as tg
from tinkergym.cli.main import app
from tinkergym.errors import AuthenticationError, EnvironmentGoneError
from tinkergym.serving.server_token import choose_token, read_token

BOARD = "board/TicTacToeVs-v0"
COMMAND = [sys.executable, "-m", "tinkergym.cli.main", "serve-env"]


@pytest.fixture
def start(monkeypatch):
    """Start a server as a process; return it, its URL and everything it printed until it was ready."""
    monkeypatch.delenv("TINKERGYM_ENV_TOKEN", raising=False)
    processes = []

    def run(*arguments, env=BOARD):
        process = subprocess.Popen(
            [*COMMAND, env, "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        processes.append(process)
        said = []
        while not said or "play it with" not in said[-1]:
            line = process.stdout.readline()
            assert line, said
            said.append(line)
        return process, re.search(r"ws://\S+", said[0])[0], "".join(said)

    yield run
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def remote(url, token, **kwargs):
    return tg.make("tinkergym/Remote-v0", url=url, token=token, reconnect_seconds=0.2, **kwargs)


@pytest.mark.service
def test_draws_token_shows_it_once_and_asks_two_clients(start):
    process, url, said = start("--kwargs", '{"size": 4}')
    token = re.search(r"token \(shown only now\): (\S+)", said)[1]
    assert said.count(token) == 1
    with pytest.raises(AuthenticationError):
        remote(url, "another")
    one, other, here = remote(url, token), remote(url, token), tg.make(BOARD, size=4)
    assert one.reset(seed=1) == other.reset(seed=1) == here.reset(seed=1)
    # In turns, each goes its own way.
    assert one.step("a1") == here.step("a1")
    assert other.step("b2")[0] != one.step("c3")[0]
    process.send_signal(signal.SIGKILL)
    process.wait()
    with pytest.raises(EnvironmentGoneError):
        one.step("d4")
    one.close()
    other.close()


OWN = """
import tinkergym as tg
class Echo(tg.SingleTurnEnv):
    system_prompt = "Say it."
    def __init__(self, word="hello"): self.word = word
    def ask(self, options): return self.word
    def score(self, answer): return float(answer == self.word)
"""


@pytest.mark.service
def test_serves_own_environment_by_where_it_stands_until_a_signal(start, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    arguments = ("--token", "a-token-of-mine", "--kwargs", '{"word": "hi"}', "--processes")
    process, url, _ = start(*arguments, env="own:Echo")
    env = remote(url, "a-token-of-mine")
    assert env.reset(seed=0)[0] == "hi"
    assert (env.step("hi")[1], env.metadata["system_prompt"]) == (1.0, "Say it.")
    env.reset(seed=0)
    process.send_signal(signal.SIGTERM)  # SIGINT: test_every_command
    rest, _ = process.communicate(timeout=120)
    assert (process.returncode, rest.splitlines()) == (0, ["stopped"])
    with pytest.raises(EnvironmentGoneError):
        env.step("hi")


def run(*arguments):
    return CliRunner().invoke(app, ["serve-env", *arguments])


def test_says_in_one_sentence_that_port_is_in_use():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = run(BOARD, "--port", str(port))
    assert result.exit_code == 2
    assert f"port {port} on 127.0.0.1 is in use" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("no/Such-v0",), "no environment"),
        ((BOARD, "--kwargs", "{"), "is not valid JSON:"),
        ((BOARD, "--kwargs", "[]"), "must be a JSON object"),
        ((BOARD, "--kwargs", '{"siez": 3}'), "could not be created"),
        ((BOARD, "--capacity", "0"), "capacity"),
        ((BOARD, "--token", "short"), "token"),
        ((BOARD, "--token-file", "/no/such/file"), "cannot be read"),
        ((BOARD, "--token", "long-enough", "--token-file", "/x"), "pass either --token or --token-file"),
        ((BOARD, "--host", "203.0.113.7"), "cannot listen on 203.0.113.7"),
    ],
)
def test_reports_a_mistake_in_a_sentence(arguments, text):
    result = run("--port", "0", *arguments)
    assert result.exit_code == 2
    assert text in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_takes_token_from_option_file_or_variable(tmp_path):
    file = tmp_path / "token"
    file.write_text("from-the-file\n")
    environ = {"TINKERGYM_ENV_TOKEN": "from-the-variable"}
    assert choose_token("given", None, environ).text == "given"
    assert choose_token(None, file, environ).text == "from-the-file"
    assert choose_token(None, None, environ).text == "from-the-variable"
    drawn = [choose_token(None, None, {}) for _ in range(2)]
    assert all(token.drawn for token in drawn)
    assert drawn[0].text != drawn[1].text
    assert read_token(file) not in repr(choose_token(None, file))


@pytest.mark.parametrize("name", ["own:Ecko", "nowhere:Echo", "ws://127.0.0.1:1"])
def test_rejects_by_name_what_cannot_be_served(tmp_path, monkeypatch, name):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["serve-env", name])
    assert (done.exit_code, "error: ENV:" in done.output) == (2, True), done.output
