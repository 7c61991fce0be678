"""The bridge to verifiers, with a counterpart of it; `test_verifiers_package.py` has the real one."""

import json
import sys
from pathlib import Path

import pytest

from tests.tinkergym.bridges.at_once import at_once, count_on
from tinkergym.bridges import verifiers_process
from tinkergym.bridges.verifiers import VerifiersEnv
from tinkergym.errors import (
    EnvironmentInfrastructureError,
    EpisodeProtocolError,
    InvalidEnvironmentError,
    InvalidRequestError,
    InvalidRewardError,
)
from tinkergym.testing.contract import EnvContract

COUNTERPARTS = Path(__file__).parents[2] / "counterparts"


@pytest.fixture(scope="module", autouse=True)
def counterpart():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(COUNTERPARTS))
        patch.setenv("TINKERGYM_VERIFIERS_PYTHON", sys.executable)
        patch.setattr(verifiers_process, "_processes", {})
        yield
        for process in verifiers_process._processes.values():
            process.close()


def count(**arguments):
    return VerifiersEnv("counterpart-env", arguments=arguments)


def test_leaves_no_process_of_an_environment_that_loads_too_slowly(monkeypatch):
    started = []
    popen = verifiers_process.subprocess.Popen
    monkeypatch.setattr(
        verifiers_process.subprocess,
        "Popen",
        lambda *given, **named: started.append(popen(*given, **named)) or started[-1],
    )
    monkeypatch.setattr(verifiers_process, "_START_SECONDS", 0.0)
    with pytest.raises(InvalidEnvironmentError) as caught:
        count(late=True)
    assert caught.value.field == "environment"
    (process,) = started
    assert process.poll() is not None


@pytest.fixture
def shell_for_python(monkeypatch, tmp_path):
    """Return a function that makes a shell script stand in for the Python with verifiers."""

    def use(commands):
        script = tmp_path / "python"
        script.write_text(f"#!/bin/sh\n{commands}\n")
        script.chmod(0o755)
        monkeypatch.setenv("TINKERGYM_VERIFIERS_PYTHON", str(script))

    return use


@pytest.mark.parametrize("line", ["Activating", "[1]", "{}", r"\377"])
def test_names_python_that_prints_something_of_its_own_immediately(shell_for_python, line):
    shell_for_python(f"printf '{line}\\n'; read request")
    with pytest.raises(InvalidEnvironmentError) as error:
        count()
    assert error.value.field == "environment"
    assert line.startswith("\\") or line in error.value.message
    assert "TINKERGYM_VERIFIERS_PYTHON" in error.value.hint


def test_ends_a_process_that_prints_an_endless_line(shell_for_python):
    shell_for_python("head -c 70000000 /dev/zero | tr '\\0' a; read request")
    with pytest.raises(InvalidEnvironmentError) as caught:
        count()
    assert caught.value.field == "environment"


def test_ends_process_and_all_waits_on_a_malformed_response_line(shell_for_python):
    shell_for_python("""echo '{"i": -1}'; read request; echo Oops; read request""")
    with pytest.raises(EnvironmentInfrastructureError):
        count()


def test_rejects_description_without_its_parts(shell_for_python):
    shell_for_python("""echo '{"i": -1}'; read request; echo '{"i": 0}'""")
    with pytest.raises(InvalidEnvironmentError) as caught:
        count()
    assert caught.value.field == "environment"


ASKED = {"messages": [{"role": "user", "content": "count"}], "tools": []}
ENDED = {"ended": True, "reward": 1, "metrics": {}, "truncated": False, "stop": "", "messages": []}


@pytest.fixture
def answering(shell_for_python, tmp_path):
    """Return a function that makes a process with given answers stand in for an environment."""

    def use(**answers):
        about = {"refused": "", "has_split": True, "system_prompt": "", "tools": []}
        given = {"about": about, "rows": {"count": 1}, "begin": ASKED, "abandon": {}, **answers}
        cases = []
        for name, answer in given.items():
            (tmp_path / name).write_text(json.dumps(answer)[1:])
            cases.append(f"""*'"do": "{name}"'*) printf '{{"i": %d, ' $n; cat '{tmp_path / name}';;""")
        said = f"case $line in {' '.join(cases)} esac; echo"
        shell_for_python(f"echo '{{\"i\": -1}}'; n=0; while read -r line; do {said}; n=$((n+1)); done")
        return count()

    return use


@pytest.mark.parametrize("wrong", [{"messages": 5}, {"messages": [5]}, {"messages": None}, {"tools": []}])
def test_loses_episode_whose_request_cannot_be_read(answering, wrong):
    env = answering(begin=ASKED | wrong if "tools" not in wrong else wrong)
    with pytest.raises(EnvironmentInfrastructureError):
        env.reset(seed=0)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"metrics": 5}, EnvironmentInfrastructureError),
        ({"messages": [[]]}, EnvironmentInfrastructureError),
        ({"reward": "1"}, InvalidRewardError),
        ({"reward": float("nan")}, InvalidRewardError),
        ({"reward": None}, InvalidRewardError),
        ({"reward": [[1]]}, InvalidRewardError),
    ],
)
def test_loses_episode_whose_result_cannot_be_read(answering, wrong, error):
    env = answering(answer=ENDED | wrong)
    env.reset(seed=0)
    with pytest.raises(error):
        env.step("1")
    with pytest.raises(EpisodeProtocolError):
        env.step("2")


def test_shortens_an_environments_error_and_stop(answering):
    env = answering(answer={"error": "e" * 99_000, "traceback": "t" * 99_000})
    env.reset(seed=0)
    with pytest.raises(EnvironmentInfrastructureError) as caught:
        env.step("1")
    assert len(caught.value.message) < 5_000
    env = answering(answer=ENDED | {"stop": "s" * 99_000})
    env.reset(seed=0)
    assert len(env.step("1")[4]["stop"]) == 200


class TestTheContract(EnvContract):
    def make(self):
        return count()


def test_plays_the_environments_own_episode():
    env = count()
    assert env.metadata["system_prompt"] == "Count."
    assert env.metadata["splits"] == ["train", "eval"]
    observation, info = env.reset(options={"task_index": 1})
    assert observation == [{"role": "user", "content": "count from 4"}]
    assert info == {"row": 1}
    assert env.step("4")[:4] == ([{"role": "user", "content": "next"}], 0.0, False, False)
    env.step("5")
    observation, reward, terminated, truncated, info = env.step("7")
    assert observation == [{"role": "user", "content": "done"}]
    assert (reward, terminated, truncated) == (2.0, True, False)
    assert (info["metrics"], info["stop"]) == ({"right": 2.0}, "done")
    with pytest.raises(EpisodeProtocolError):
        env.step("8")
    env.close()


def test_takes_no_training_tasks_for_a_missing_eval_dataset():
    with pytest.raises(InvalidRequestError) as caught:
        VerifiersEnv("counterpart-env", arguments={"held_out": False}, split="eval")
    assert caught.value.field == "split"
    assert len(VerifiersEnv("counterpart-env", arguments={"held_out": False}).tasks) == 2


def test_truncates_at_the_environments_own_limit():
    env = count(max_turns=2)
    env.reset(seed=0)
    env.step("1")
    assert env.step("x")[2:4] == (False, True)


def test_ends_an_environments_only_turn_without_calling_it_a_limit():
    env = count(max_turns=1)
    env.reset(seed=0)
    assert env.step("x")[2:4] == (True, False)


def test_reads_calls_and_returns_results_as_tool_messages():
    env = count(tools=True)
    assert '"name": "add"' in env.metadata["system_prompt"]
    env.reset(seed=0)
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    (message,), *_, info = env.step(call)
    assert (message["role"], message["content"]) == ("tool", 'add {"a": 1}')
    assert message["tool_call_id"].startswith("call-")
    assert info["metrics"] == {"malformed_tool_calls": 0.0}
    assert env.step("<tool_call>{oops</tool_call>")[4]["metrics"] == {"malformed_tool_calls": 1.0}
    env.close()


def test_separates_many_episodes_in_one_process():
    envs = [count() for _ in range(6)]
    assert len({id(env._process()) for env in envs}) == 1
    assert at_once(count_on, envs) == [3.0] * 6


def test_loses_episode_on_an_error():
    env = count()
    env.reset(seed=0)
    with pytest.raises(EnvironmentInfrastructureError):
        env.step("break")
    with pytest.raises(EpisodeProtocolError):
        env.step("1")
    env.reset(seed=0)
    env.step("nan")
    env.step("2")
    with pytest.raises(InvalidRewardError):
        env.step("3")


def test_drops_rewards_too_large_for_a_float():
    env = count()
    env.reset(options={"task_index": 0})
    for said in ("1", "2"):
        env.step(said)
    assert env.step("huge metric")[4]["metrics"] == {"right": 2.0}
    env.reset(options={"task_index": 0})
    for said in ("1", "2"):
        env.step(said)
    with pytest.raises(InvalidRewardError):
        env.step("huge")


def test_loses_episodes_of_ended_process_and_restarts_on_reset():
    env = count(max_turns=7)
    env.reset(seed=0)
    process = env._process()
    with pytest.raises(EnvironmentInfrastructureError):
        env.step("die")
    env.reset(seed=0)
    assert env._process() is not process
    assert env.step("1")[1] == 0.0


def test_rejects_environment_that_cannot_be_trained_in():
    with pytest.raises(InvalidEnvironmentError) as caught:
        count(groups=True)
    assert caught.value.field == "environment"
    env = count(rewrites=True)
    env.reset(seed=0)
    with pytest.raises(InvalidEnvironmentError) as caught:
        env.step("1")
    assert caught.value.field == "environment"


@pytest.mark.parametrize(
    ("environment", "settings", "field"),
    [
        ("no-such-environment", {}, "environment"),
        ("counterpart_env:Missing", {}, "environment"),
        ("counterpart-env", {"arguments": {"speed": 3}}, "environment"),
        ("; rm", {}, "environment"),
        ("counterpart-env", {"split": "test"}, "split"),
    ],
)
def test_says_before_start_what_cannot_be_loaded(environment, settings, field):
    with pytest.raises(InvalidRequestError) as error:
        VerifiersEnv(environment, **settings)
    assert error.value.field == field


def test_says_in_one_sentence_what_to_do_without_verifiers(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "verifiers.py").write_text("raise ModuleNotFoundError(\"No module named 'verifiers'\")")
    with pytest.raises(InvalidEnvironmentError) as error:
        count(of="no process that runs already")
    assert error.value.field == "environment"
    assert "TINKERGYM_VERIFIERS_PYTHON" in error.value.hint
    monkeypatch.setenv("TINKERGYM_VERIFIERS_PYTHON", str(tmp_path / "nothing"))
    with pytest.raises(InvalidEnvironmentError) as caught:
        count()
    assert caught.value.field == "environment"


def test_names_a_module_and_attribute():
    env = VerifiersEnv("counterpart_env:Count", split="eval")
    assert len(env.tasks) == 1
    assert len(env.tasks.fingerprint) == 64
    assert json.dumps(env.reset(seed=0)[0])
    env.close()
