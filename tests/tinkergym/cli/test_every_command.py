"""`--json` and Ctrl-C of every command; a command that the table below does not know fails it."""

import json
import os
import signal
import subprocess
import sys

import pytest

import tinkergym as tg
from tests.tinkergym.certificates.made_run import signed
from tinkergym.certificates.checks import certify
from tinkergym.cli import main
from tinkergym.remote.certificate_download import WrittenCertificate
from tinkergym.remote.job import Job
from tinkergym.remote.policy_export import Exported
from tinkergym.schema.certificate import EventsFacts, RunFacts
from tinkergym.schema.events import JobState

BOARD = "board/TicTacToeVs-v0"
NOISY = """
import tinkergym as tg
class Env(tg.SingleTurnEnv):
    def ask(self, options):
        print("noise of an environment")
        return "b2?"
    def score(self, answer): return float(answer == "b2")
"""
PROGRAM = """
import json, os, urllib.request
body = json.dumps({"model": "any", "messages": [{"role": "user", "content": "1?"}]}).encode()
key = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, body, key)).read()
print(1.0)
"""
TINKERGYM = [sys.executable, "-m", "tinkergym"]


def leaves(command, *path):
    """Yield (name, command) of what can be typed; a group that does something by itself, too."""
    inner = getattr(command, "commands", {})
    if not inner or command.invoke_without_command:
        yield " ".join(path), command
    for name, below in inner.items():
        yield from leaves(below, *path, name)


COMMANDS = dict(leaf for name in main.COMMANDS for leaf in leaves(main.load(name), name))
ENDLESS = ["--steps", "100000"]  # it is played until the command has ended
SMALL = ["--steps", "1", "--group-size", "2", "--groups", "1"]
ONE, LINES = "one document", "a document per line"
TABLE = {
    # name: (form, arguments, what is in the first document)
    "train": (LINES, ["noisy:Env", *SMALL], "body"),
    "train-agent": (LINES, [*SMALL, sys.executable, "program.py"], "body"),
    "sft": (LINES, ["rows.jsonl", "--steps", "1"], "body"),
    "preference": (LINES, ["pairs.jsonl", "--steps", "1"], "body"),
    "distill": (LINES, [BOARD, "--teacher", "nano", "--steps", "1", "--episodes", "2"], "body"),
    "jobs": (ONE, [], "jobs"),
    "jobs list": (ONE, [], "jobs"),
    "jobs show": (ONE, ["job-1"], "spec"),
    "jobs label": (ONE, ["job-1", "--tag", "a"], "tags"),
    "jobs compare": (ONE, ["job-1", "job-2"], "settings"),
    "jobs page": (ONE, ["job-1", "page"], "page"),
    "jobs attach": (LINES, ["job-1"], "body"),
    "jobs watch": (LINES, ["job-1"], "body"),
    "jobs logs": (LINES, ["job-1"], "body"),
    "jobs pause": (ONE, ["job-2"], "state"),
    "jobs resume": (ONE, ["job-2"], "state"),
    "jobs update": (ONE, ["job-2", "--set", "learning_rate=0.01"], "updates"),
    "jobs promote": (ONE, ["job-2", "0", "--name", "support"], "policy"),
    "jobs names": (ONE, [], "names"),
    "jobs cancel": (ONE, ["job-1"], "state"),
    "jobs delete": (LINES, ["job-1", "--yes"], "bytes"),
    "jobs checkpoints": (ONE, ["job-1"], "checkpoints"),
    "jobs download": (ONE, ["job-1", "--to", "fetched"], "folder"),
    "jobs results": (ONE, ["job-2", "--out", "results.jsonl"], "completions"),
    "jobs certificate": (ONE, ["job-1"], "sha256"),
    "verify": (ONE, ["run.json"], "checked"),
    "status": (ONE, [], "memory"),
    "export": (ONE, ["job-1", "exported"], "policy_version"),
    "play": (LINES, ["noisy:Env", "--episodes", "2"], "messages"),
    "envs": (ONE, ["board"], "environments"),
    "new-env": (ONE, ["my-game"], "next"),
    "data check": (ONE, ["run.json"], "columns"),
    "check": (ONE, ["noisy:Env", "--only", "json"], "checks"),
    "eval": (ONE, ["noisy:Env", "--tasks", "2"], "mean_return"),
    "generate": (ONE, ["nano", "--data", "rows.jsonl", "--out", "answers.jsonl"], "completions"),
    "compare": (ONE, ["a.jsonl", "b.jsonl"], "difference"),
    "replay": (LINES, ["a.jsonl"], "trajectory"),
    "tokens": (ONE, ["nano"], "exact"),
    "serve-policy": (ONE, ["nano"], "model"),
    # These become programs of the service, whose own tests read what they print.
    "serve": ("backend.app.supervisor", [], ""),
    "view": ("backend.app.run_viewer", ["run.bundle.tar"], ""),
    "migrate": ("backend.app.migrate", [], ""),
    "plan": ("backend.app.planned", [], ""),
    "backup": ("backend.app.service_backup", ["copies"], ""),
    "restore": ("backend.app.service_backup", ["copies"], ""),
    "keys create": ("backend.app.key_commands", ["laptop"], ""),
    "keys list": ("backend.app.key_commands", [], ""),
    "keys revoke": ("backend.app.key_commands", ["key-1"], ""),
    # Runs until it is stopped: see the last test.
    "serve-env": (LINES, [], ""),
    # Needs stored episodes: see tests/journeys/test_branches.py.
    "branch": (ONE, [], ""),
}
PRINTING = [name for name, (form, arguments, shown) in TABLE.items() if shown]
HANDED_OVER = [name for name, (form, *_) in TABLE.items() if form.startswith("backend.")]


@pytest.fixture
def workplace(start_service, tg_run, tmp_path, monkeypatch):
    """A folder with an environment that prints, data and evaluations, and a service with a job that ended."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noisy.py").write_text(NOISY)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1?", "completion": "one"}\n' * 4)
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "1?", "chosen": "one", "rejected": "two"}\n' * 4)
    service = start_service(lambda prompt: "b2", environments=[BOARD])
    service.jobs.files = {"adapter_config.json": b"{}", "adapter_model.safetensors": b""}
    with tg.Client() as client:
        client.train(BOARD, steps=1)
    # A real one needs a trained model; what it writes has tests of its own.
    done = Exported(folder=tmp_path, policy_version=1, is_adapter=True, bytes=1)
    monkeypatch.setattr(Job, "export", lambda *_, **__: done)
    with tg.Client() as client:
        facts = RunFacts(
            job=client.job("job-1").view(),
            service_version="0.1.0",
            made_at=0.0,
            events=EventsFacts(count=0, head_sha256=""),
        )
    certificate = certify(signed(facts))
    (tmp_path / "run.json").write_text(certificate.model_dump_json())
    written = WrittenCertificate(certificate=certificate, json=tmp_path / "run.json")
    monkeypatch.setattr(Job, "certificate", lambda *_, **__: written)
    return service


def documents(stdout):
    """Return the documents on the lines; a figure that is not finite is no JSON."""
    return [json.loads(line, parse_constant=pytest.fail) for line in stdout.splitlines()]


def test_knows_every_command_in_the_table_and_documents_its_json():
    assert TABLE.keys() == COMMANDS.keys()
    for name, command in COMMANDS.items():
        options = {option for parameter in command.params for option in parameter.opts}
        assert "--json" in options, name


@pytest.mark.parametrize("name", PRINTING)
def test_prints_only_json_on_the_standard_output(workplace, tg_run, name):
    form, arguments, shown = TABLE[name]
    if name in ("compare", "replay"):
        for file, policy in (("a.jsonl", "random"), ("b.jsonl", "legal")):
            made = tg_run("eval", BOARD, "--policy", policy, "--tasks", "3", "--out", file, "--json")
            assert made.exit_code == 0, made.output
    if name == "jobs results":
        made = tg_run("generate", "nano", "--data", "rows.jsonl", "--detach", "--json")
        assert documents(made.stdout)[0]["job_id"] == "job-2"
    elif "job-2" in arguments:  # one that has not ended
        assert tg_run("train", "noisy:Env", *ENDLESS, "--detach", "--json").exit_code == 0
    result = tg_run(*name.split(), *arguments, "--json", typed="b2\nb3\n")
    printed = documents(result.stdout)
    # Nothing was recorded of the certificate's run, which `verify` finds.
    assert result.exit_code == (1 if name == "verify" else 0), result.output
    assert shown in printed[0]
    assert len(printed) == 1 if form is ONE else len(printed) >= 1
    if "noisy:Env" in arguments:
        assert "noise of an environment" in result.stderr


@pytest.mark.parametrize("name", HANDED_OVER)
def test_tells_a_program_of_the_service_that_json_is_wanted(tg_run, monkeypatch, name):
    program, arguments, _ = TABLE[name]
    became = []
    monkeypatch.setattr(os, "execv", lambda _, command: became.append(command[1:]))
    assert tg_run(*name.split(), *arguments, "--json").exit_code == 0
    assert became[0][:4] == ["-m", "backend.processes.quick_start", program, "--json"]


@pytest.mark.parametrize("name", COMMANDS)
def test_reports_wrong_command_line_as_json_too(tg_run, name):
    result = tg_run(*name.split(), "--nonsense", "--json")
    (printed,) = documents(result.stdout)
    assert (result.exit_code, printed["error"]["type"]) == (2, "InvalidRequestError")
    assert "--nonsense" in printed["error"]["message"]
    assert "--nonsense" in result.stderr


def test_prints_errors_as_json_and_as_a_sentence(workplace, tg_run):
    result = tg_run("jobs", "show", "job-9", "--json")
    (printed,) = documents(result.stdout)
    assert printed.keys() == {"error"}
    assert printed["error"].keys() == {"type", "message", "hint", "field", "code"}
    assert (result.exit_code, printed["error"]["type"]) == (2, "NotFoundError")
    assert result.stderr.startswith("error: ")
    plain = tg_run("jobs", "show", "job-9")
    assert (plain.exit_code, plain.stdout, plain.stderr) == (2, "", result.stderr)


def test_ends_events_of_failed_job_with_the_reason(workplace, tg_run):
    assert tg_run("train", "noisy:Env", *ENDLESS, "--detach", "--json").exit_code == 0
    workplace.jobs.end("job-2", JobState.FAILED)
    result = tg_run("jobs", "attach", "job-2", "--json")
    *events, last = documents(result.stdout)
    assert (result.exit_code, last["error"]["type"]) == (1, "JobFailedError")
    assert all(event["job_id"] == "job-2" for event in events)


def test_asks_on_stderr_and_treats_no_as_an_error(workplace, tg_run):
    result = tg_run("jobs", "delete", "job-1", "--json", typed="n\n")
    (printed,) = documents(result.stdout)
    assert (result.exit_code, "--yes" in printed["error"]["hint"]) == (1, True)
    assert "Delete job-1" in result.stderr


def test_accepts_json_before_the_name_of_a_groups_command(workplace, tg_run):
    before, after = (
        tg_run("jobs", *words) for words in (("--json", "show", "job-1"), ("show", "job-1", "--json"))
    )
    assert (before.exit_code, before.stdout) == (0, after.stdout)


def test_plays_game_by_a_program(workplace, tg_run):
    result = tg_run("play", "noisy:Env", "--episodes", "2", "--json", typed="b2\nc3\n")
    reset, action, end, *second = documents(result.stdout)
    assert reset["event"] == "reset" and reset["messages"] == [{"role": "user", "content": "b2?"}]
    assert action == {"event": "action", "action": "b2"}
    assert (end["event"], end["return"], end["ended_by"]) == ("end", 1.0, "terminated")
    assert [line["event"] for line in second] == ["reset", "action", "end"]
    assert second[-1]["return"] == 0.0


def test_seats_program_as_the_opponent(workplace, tg_run):
    result = tg_run("play", BOARD, "--policy", "job-1", "--json", typed="a1\na2\na3\n")
    printed = documents(result.stdout)
    assert "your_move" in [line["event"] for line in printed]
    assert printed[-1]["return"] == -1.0


SLEEPING = """
import subprocess, sys, time
import tinkergym as tg
class Env(tg.SingleTurnEnv):
    def ask(self, options):
        subprocess.run(["echo", "noise of a child process"])
        print("reached", file=sys.stderr, flush=True)
        time.sleep(600)
    def score(self, answer): return 0.0
"""


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["play"], marks=pytest.mark.full("as `eval`")),
        pytest.param(["check", "--json"], marks=pytest.mark.full("as `eval`")),
        ["eval", "--json"],
    ],
    ids=" ".join,
)
def test_ends_command_on_ctrl_c_with_130_without_traceback(tmp_path, arguments):
    (tmp_path / "sleeping.py").write_text(SLEEPING)
    command, *options = arguments
    process = subprocess.Popen(
        [*TINKERGYM, command, "sleeping:Env", *options],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    said = []
    while "reached\n" not in said and (line := process.stderr.readline()):
        said.append(line)
    process.send_signal(signal.SIGINT)
    out, rest = process.communicate(timeout=120)
    err = "".join(said) + rest
    assert process.returncode == 130, err
    assert "Traceback" not in err
    if options:
        assert documents(out)[-1]["error"]["type"] == "InterruptedCommandError"
        assert "noise of a child process" in err


def test_leaves_game_with_130_on_ctrl_c_at_a_question(tmp_path):
    process = subprocess.Popen(
        [*TINKERGYM, "play", BOARD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    shown = b""
    while b"you >" not in shown and (more := os.read(process.stdout.fileno(), 1000)):
        shown += more
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, b"")
    assert b"left the game" in out


def test_runs_the_package_as_the_command_line():
    ran = subprocess.run([*TINKERGYM, "--help"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "Usage: python -m tinkergym" in ran.stdout


@pytest.mark.service
def test_ends_environment_server_with_0_after_ctrl_c():
    process = subprocess.Popen(
        [*TINKERGYM, "serve-env", BOARD, "--port", "0", "--json"], stdout=subprocess.PIPE, text=True
    )
    serving = json.loads(process.stdout.readline())
    assert (serving["event"], serving["environment"]) == ("serving", BOARD)
    env = tg.make("tinkergym/Remote-v0", url=serving["url"], token=serving["token"])
    env.reset(seed=0)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert (process.returncode, documents(out)) == (0, [{"event": "stopped"}])
    env.close()
