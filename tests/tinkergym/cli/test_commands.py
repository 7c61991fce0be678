import os
import re
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import tinkergym as tg
from tinkergym.cli.main import app
from tinkergym.schema.events import CheckpointView, ErrorView, JobState

BOARD = "board/TicTacToeVs-v0"


@pytest.fixture
def service(start_service):
    return start_service(lambda prompt: "b2", environments=[BOARD])


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str, typed: str = ""):
        return CliRunner().invoke(app, list(arguments), input=typed)

    return run


@pytest.mark.parametrize(
    "command",
    [[], *[[name] for name in ("serve", "train", "jobs", "play", "envs", "keys")], ["jobs", "attach"]],
)
def test_every_command_explains_itself(run, command):
    result = run(*command, "--help")
    assert result.exit_code == 0
    # An explanation in words, not just a list of options.
    assert re.search(r"[A-Z][a-z]+ [^\n]{15,}\.", result.output)


def test_the_version_can_be_asked_for(run):
    result = run("--version")
    assert (result.exit_code, result.output) == (0, f"tinkergym {tg.__version__}\n")


def test_training_prints_each_step_as_a_line_and_where_to_go_from_there(run, service):
    result = run("train", BOARD, "--steps", "3")
    assert result.exit_code == 0
    assert "step 3/3  reward" in result.output
    assert "tinkergym play board/TicTacToeVs-v0 --policy job-1" in result.output


def test_several_environments_are_named_with_their_weights(run, start_service):
    service = start_service(lambda prompt: "b2", environments=[BOARD, "bandit/Bandit-v0"])
    result = run("train", "--env", f"{BOARD}:0.7", "--env", "bandit/Bandit-v0:0.3", "--steps", "2")
    assert result.exit_code == 0, result.output
    spec = service.jobs.get("job-1").view.spec
    assert [(one.id, one.weight) for one in spec.environments] == [(BOARD, 0.7), ("bandit/Bandit-v0", 0.3)]


@pytest.mark.parametrize(
    "arguments",
    [[], [BOARD, "--env", f"{BOARD}:1"], ["--env", BOARD], ["--env", "ws://localhost:8300"]],
    ids=["none", "both", "no weight", "a port"],
)
def test_environments_that_are_not_named_one_way_are_refused(run, service, arguments):
    result = run("train", *arguments, "--steps", "2")
    assert (result.exit_code, "error: " in result.output) == (2, True)
    assert service.jobs.newest_first() == []


def test_trackers_are_named_on_the_command_line_of_a_new_job_and_of_a_running_one(
    run, service, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert run("train", BOARD, "--steps", "3", "--report-to", "jsonl").exit_code == 0
    assert run("jobs", "attach", "job-1", "--report-to", "csv", "--report-to", "jsonl").exit_code == 0
    files = {
        path.name: len(path.read_text().splitlines()) for path in (tmp_path / "runs" / "job-1").iterdir()
    }
    assert files == {"metrics.jsonl": 3, "metrics.csv": 4}
    assert run("train", BOARD, "--steps", "3", "--report-to", "excel").exit_code != 0
    assert len(service.jobs.newest_first()) == 1


def test_written_data_is_trained_on_and_shown_by_its_loss(run, service, tmp_path):
    rows, pairs = tmp_path / "rows.jsonl", tmp_path / "pairs.jsonl"
    rows.write_text('{"prompt": "1?", "completion": "one"}\n' * 4)
    pairs.write_text('{"prompt": "1?", "chosen": "one", "rejected": "two"}\n' * 4)
    result = run("sft", str(rows), "--epochs", "2", "--batch-size", "2", "--rank", "4", "--set", "seed=7")
    assert result.exit_code == 0, result.output
    assert "sft · nano · LoRA rank 4 · steps: 4 · records per step: 2" in result.output
    assert "done: step 4 of 4" in result.output
    spec = service.jobs.newest_first()[0].spec
    assert (spec.seed, spec.lr_schedule, spec.adapter.rank) == (7, "linear", 4)
    result = run("preference", str(pairs), "--steps", "2", "--loss", "ipo", "--set", "loss.beta=0.2")
    assert result.exit_code == 0, result.output
    spec = service.jobs.newest_first()[0].spec
    assert (spec.loss.name, spec.loss.beta) == ("ipo", 0.2)
    listed = run("jobs")
    assert "preference" in listed.output and "sft" in listed.output


def test_bad_data_is_named_by_line_field_and_reason(run, service, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1?", "completion": "one"}\n{"prompt": "1?"}\n')
    result = run("sft", str(rows))
    assert result.exit_code != 0
    assert "rows.jsonl, line 2: completion: is missing" in result.output
    assert service.jobs.newest_first() == []


def test_a_student_is_taught_from_the_command_line(run, service):
    result = run("distill", BOARD, "--teacher", "nano", "--steps", "2", "--episodes", "4")
    assert result.exit_code == 0, result.output
    spec = service.jobs.newest_first()[0].spec
    assert (spec.kind, spec.teacher, spec.episodes_per_step) == ("distillation", "nano", 4)


def test_options_and_settings_reach_the_job(run, service):
    algorithm = ["--group-size", "4", "--groups", "3", "--learning-rate", "0.01"]
    others = ["--rank", "2", "--env-set", "size=5", "--set", "sampling.temperature=0.5", "--set", "seed=7"]
    result = run("train", BOARD, "--steps", "1", *algorithm, *others)
    assert result.exit_code == 0
    spec = service.jobs.newest_first()[0].spec
    assert (spec.algorithm.group_size, spec.algorithm.groups_per_step) == (4, 3)
    assert (spec.adapter.rank, spec.algorithm.learning_rate, spec.seed) == (2, 0.01, 7)
    assert (spec.sampling.temperature, spec.environment.kwargs) == (0.5, {"size": 5})


def test_what_an_option_says_can_be_said_by_set_too_but_not_twice(run, service):
    result = run("train", BOARD, "--steps", "1", "--set", "rollout=server", "--set", "env_kwargs.size=5")
    assert result.exit_code == 0, result.output
    spec = service.jobs.newest_first()[0].spec
    assert (spec.rollout, spec.environment.kwargs) == ("server", {"size": 5})
    result = run("train", BOARD, "--steps", "1", "--rollout", "client", "--set", "rollout=server")
    assert result.exit_code == 2
    assert "error: --set: rollout is given twice" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "greater than or equal to 1, got 0"),
        (["--steps", "1", "--set", "sede=3"], "error: sede: unknown setting\n  did you mean seed?"),
        (["--steps", "1", "--group-size", "1"], "error: algorithm.group_size: must be at least 2"),
        (["--steps", "1", "--set", "seed"], "error: --set: 'seed' is no setting"),
    ],
)
def test_a_wrong_setting_is_one_sentence_and_exit_code_2(run, service, arguments, message):
    result = run("train", BOARD, *arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_an_unknown_environment_is_refused(run, service):
    result = run("train", "board/Checkers-v0", "--steps", "1")
    assert result.exit_code == 2
    assert "error: environment.id: no pack registers" in result.output


def test_a_module_that_is_not_there_is_refused(run, service):
    result = run("train", "nowhere:Env", "--steps", "1")
    assert result.exit_code == 2
    assert "module:ClassName" in result.output


def test_a_script_that_trains_when_it_is_imported_for_its_class_starts_no_job(
    run, service, tmp_path, monkeypatch
):
    (tmp_path / "trainly.py").write_text(
        "import tinkergym as tg\n"
        "class Env(tg.SingleTurnEnv):\n"
        "    def ask(self, options): return '?'\n"
        "    def score(self, answer): return 1.0\n"
        "tg.Client().train(Env, steps=1).wait()\n"
    )
    monkeypatch.chdir(tmp_path)
    result = run("check", "trainly:Env")
    assert result.exit_code == 2
    assert "__main__" in result.output
    assert service.jobs.newest_first() == []


def test_without_a_service_the_command_says_how_to_start_one(run, monkeypatch, tmp_path):
    monkeypatch.delenv("TINKERGYM_URL", raising=False)
    monkeypatch.setenv("TINKERGYM_HOME", str(tmp_path))
    result = run("jobs")
    assert result.exit_code == 1
    assert "tinkergym serve" in result.output


def test_a_job_that_failed_ends_the_command_with_its_reason(run, service):
    run("train", BOARD, "--steps", "1", "--rollout", "client", "--detach")
    service.jobs.end(
        "job-1", JobState.FAILED, error=ErrorView(type="X", message="it fell over", hint="mend it")
    )
    result = run("jobs", "attach", "job-1")
    assert result.exit_code == 1
    assert "it fell over\n  mend it" in result.output


def test_a_job_fits_into_one_line_of_80_columns(run, service, monkeypatch):
    run("train", BOARD, "--steps", "9", "--rollout", "client", "--detach")
    monkeypatch.setenv("COLUMNS", "65")  # the ids of a real service are 15 longer
    assert re.search(r"job-1 +running +0/9 +board/TicTacToeVs-v0 +nano +..-.. ..:..", run("jobs").output)


def test_however_narrow_the_terminal_a_job_stays_on_one_line(run, service, monkeypatch):
    long = "a model that plays as well as the best of them, once it has been trained for long enough"
    run("train", BOARD, "--steps", "9", "--rollout", "client", "--detach", "--set", f"name={long}")
    monkeypatch.setenv("COLUMNS", "20")
    header, line = run("jobs").output.splitlines()
    assert re.search(rf"^job-1 +running +0/9 +{BOARD} +nano +..-.. ..:.. +{long}$", line)
    assert line.index(BOARD) == header.index("environment")


def test_jobs_are_listed_shown_and_cancelled(run, service):
    assert "no jobs yet" in run("jobs").output
    run("train", BOARD, "--steps", "9", "--rollout", "client", "--detach", "--set", "name=first [try]")
    listed = run("jobs").output
    assert re.search(r"job-1 +running +0/9 +board/TicTacToeVs-v0 +nano .*first \[try\]", listed)
    assert '"group_size": 8' in run("jobs", "show", "job-1").output
    assert "has ended (cancelled)" in run("jobs", "cancel", "job-1").output
    missing = run("jobs", "show", "job-9")
    assert (missing.exit_code, "no job is called 'job-9'" in missing.output) == (2, True)


@pytest.mark.parametrize(
    ("state", "said"),
    [(JobState.WAITING_FOR_CLIENT, "and ends now"), (JobState.RUNNING, "at the moment (running)")],
)
def test_a_cancelled_job_that_has_not_ended_yet_says_when_it_will(run, service, monkeypatch, state, said):
    run("train", BOARD, "--steps", "9", "--rollout", "client", "--detach")
    view = service.jobs.end("job-1", state)
    monkeypatch.setattr(service.jobs, "end", lambda *_, **__: view)  # its worker looks a moment later
    result = run("jobs", "cancel", "job-1")
    assert (result.exit_code, said in result.output) == (0, True), result.output


def test_a_list_of_jobs_that_goes_on_says_so(run, service):
    for _ in range(3):
        run("train", BOARD, "--steps", "1")
    cut = run("jobs", "--limit", "2").output.splitlines()
    assert [line.split()[0] for line in cut[1:3]] == ["job-3", "job-2"]
    assert cut[3:] == ["older ones: tinkergym jobs --limit 4"]
    assert "older ones" not in run("jobs", "--limit", "3").output


def test_ended_jobs_are_deleted_after_a_question(run, service):
    for _ in range(3):
        run("train", BOARD, "--steps", "1")
    run("train", BOARD, "--steps", "9", "--rollout", "client", "--detach")
    view = CheckpointView(step=1, policy_version=1, path="/there", sha256="0" * 64, files={"a": 2**20})
    service.jobs.get("job-1").checkpoints.append(view)
    assert run("jobs", "delete", "job-1", typed="n\n").exit_code == 1
    assert "job-1 " in run("jobs").output
    assert "job-1 is deleted (1.0 MiB)" in run("jobs", "delete", "job-1", typed="y\n").output
    gone = run("jobs", "delete", "--yes", "job-2", "job-3", "job-2")
    assert (gone.exit_code, "job-3 is deleted" in gone.output) == (0, True)
    refused = run("jobs", "delete", "--yes", "job-4")
    assert (refused.exit_code, "job-4 is running" in refused.output) == (1, True)
    assert re.findall(r"^job-\d", run("jobs").output, re.MULTILINE) == ["job-4"]


def test_checkpoints_are_listed(run, service):
    run("train", BOARD, "--steps", "1")
    assert "no checkpoints yet" in run("jobs", "checkpoints", "job-1").output
    view = CheckpointView(step=1, policy_version=1, path="/there", sha256="0" * 64, files={"a": 2**20})
    service.jobs.get("job-1").checkpoints.append(view)
    assert "step 1  1.0 MiB  /there" in run("jobs", "checkpoints", "job-1").output


def test_a_detached_client_job_is_played_by_attach(run, service):
    small = ["--group-size", "2", "--groups", "1"]
    result = run("train", BOARD, "--steps", "2", "--rollout", "client", "--detach", *small)
    assert "tinkergym jobs attach job-1" in result.output
    with service.jobs.changed:  # its worker may still be asking for episodes while the command has ended
        service.jobs.changed.wait_for(lambda: service.jobs.get("job-1").workers, timeout=5)
    service.jobs.take_back("job-1")
    assert "step 2/2" in run("jobs", "attach", "job-1").output


def test_installed_packs_are_listed(run):
    assert re.search(rf"tinkergym-board [\s\S]*\n  {BOARD} ", run("envs").output)


def test_a_person_can_sit_where_the_policy_sits(run):
    result = run("play", BOARD, "--seed", "1", typed="zz\n")
    assert "You are " in result.output
    assert "Illegal move" in result.output
    assert "return -1 (the task ended)" in result.output


def test_an_environment_that_nobody_registers_gets_close_matches(run):
    result = run("play", "board/TicTacToVs-v0")
    assert result.exit_code == 2
    assert f"did you mean {BOARD}" in result.output


def test_a_policy_can_be_watched(run, service):
    run("train", BOARD, "--steps", "1")
    result = run("play", BOARD, "--policy", "job-1", "--watch", "--episodes", "2")
    assert result.exit_code == 0
    assert "policy\nb2" in result.output
    assert "2 episodes, mean return" in result.output


@pytest.mark.parametrize("option", ["--watch", "--temperature=0", "--top-p=0.9", "--top-k=5"])
def test_what_only_a_policy_has_is_refused_where_a_person_plays(run, option):
    result = run("play", BOARD, option)
    name = option.partition("=")[0]
    assert (result.exit_code, f"error: {name}: it is of a policy" in result.output) == (2, True)


def test_a_watched_policy_draws_as_it_is_told(run, service):
    run("train", BOARD, "--steps", "1")
    service.sampled.clear()
    run("play", BOARD, "--policy", "job-1", "--watch", "--top-p", "0.9", "--top-k", "5")
    assert {(r.top_p, r.top_k) for batch in service.sampled for r in batch} == {(0.9, 5)}
    wrong = run("play", BOARD, "--policy", "job-1", "--watch", "--top-k", "-1")
    assert (wrong.exit_code, "top_k" in wrong.output) == (2, True)


def test_a_model_plays_before_there_is_any_job(run, service):
    result = run("play", BOARD, "--policy", "nano", "--watch")
    assert result.exit_code == 0, result.output
    assert service.jobs.newest_first() == []


def test_what_is_neither_a_job_nor_a_model_is_no_policy_to_play_with(run, service):
    result = run("play", BOARD, "--policy", "nanno")
    assert (result.exit_code, "error: --policy: 'nanno'" in result.output) == (2, True)


@pytest.mark.parametrize("command", [["play"], ["eval", "--tasks", "1"]])
def test_a_version_that_cannot_be_played_is_a_name_that_there_is_not(run, service, command):
    run("train", BOARD, "--steps", "1")
    result = run(*command, BOARD, "--policy", "job-1@50")
    assert (result.exit_code, "error: --policy: version 50 of job-1" in result.output) == (2, True)


def test_the_system_prompt_that_the_policy_reads_is_shown(run, service):
    run("train", BOARD, "--steps", "1", "--set", "system_prompt=Play like a pirate.")
    assert "system\nPlay like a pirate." in run("play", BOARD, "--policy", "job-1", "--watch").output


def test_a_person_plays_against_a_policy_where_the_opponent_can_be_replaced(run, service):
    run("train", BOARD, "--steps", "1")
    result = run("play", BOARD, "--policy", "job-1", typed="a1\na2\na3\n")
    # The policy always answers b2; its second b2 is illegal, so it loses at once.
    assert "your move" in result.output
    assert "return -1" in result.output


def test_leaving_a_game_is_no_error(run):
    result = run("play", BOARD, typed="")
    assert result.exit_code == 0
    assert "left the game" in result.output


def test_ctrl_c_leaves_the_job_running_and_says_how_to_go_on(service, tmp_path):
    (tmp_path / "endless.py").write_text(
        "import tinkergym as tg\n"
        "class Env(tg.SingleTurnEnv):\n"
        "    def ask(self, options): return 'b2?'\n"
        "    def score(self, answer): return float(answer == 'b2')\n"
    )
    command = [sys.executable, "-m", "tinkergym.cli.main", "train", "endless:Env", "--steps", "100000"]
    process = subprocess.Popen(
        [*command, "--group-size", "2", "--groups", "1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 1/"):
            break
    process.send_signal(signal.SIGINT)
    rest = process.stdout.read()
    assert process.wait() == 130
    assert "tinkergym jobs attach job-1 --env endless:Env" in rest
    assert "tinkergym jobs cancel job-1" in rest
    assert "Traceback" not in rest
    assert not service.jobs.get("job-1").view.state.final
    tg.Client().job("job-1").cancel()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--full", "--rank", "4"], "without an adapter that could have a --rank"),
        (["--set", "steps=3"], "steps is given twice"),
        (["--set", "env=board/NimVs-v0"], "env is given twice"),
        (["--env-set", "size=5", "--set", "env_kwargs=5"], "env_kwargs is given twice"),
        (["--env-set", "size=5", "--set", "env_kwargs.size.x=5"], "env_kwargs.size.x is given twice"),
        (
            ["--learning-rate", "0.01", "--set", "algorithm.learning_rate=0.5"],
            "algorithm.learning_rate is given",
        ),
        (["--full", "--set", "adapter.kind=lora"], "adapter.kind is given twice"),
    ],
)
def test_what_is_said_twice_or_without_meaning_is_refused(run, service, options, words):
    result = run("train", BOARD, "--steps", "1", *options)
    assert result.exit_code != 0
    assert words in " ".join(result.output.split())


def test_set_reaches_what_no_option_was_given_for(run, service):
    settings = ["--set", "adapter.rank=4", "--set", "model=nano", "--set", "algorithm.group_size=2"]
    assert run("train", BOARD, "--steps", "1", "--groups", "2", *settings).exit_code == 0
    spec = service.jobs.newest_first()[0].spec
    assert (spec.adapter.rank, spec.algorithm.group_size, spec.algorithm.groups_per_step) == (4, 2, 2)


def test_set_reaches_a_section_of_which_no_option_says_anything(run, service):
    settings = ["--set", "algorithm.name=rloo", "--set", "algorithm.groups_per_step=2"]
    assert run("train", BOARD, "--steps", "1", *settings).exit_code == 0
    assert service.jobs.newest_first()[0].spec.algorithm.name == "rloo"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", BOARD, "--steps", "1", "--set", "algorithm=rloo"], "write --set algorithm.name=rloo"),
        (["train", BOARD, "--steps", "1", "--set", "algorithm=ppoo"], "write --set algorithm.name=ppo\n"),
        (
            ["train", BOARD, "--steps", "1", "--set", "algorithm=zzz"],
            "algorithm.name=NAME with one of grpo, ",
        ),
        (
            ["train", BOARD, "--steps", "1", "--set", "algorithm=rloo", "--set", "algorithm.normalize=std"],
            "settings below it\n  write --set algorithm.name=rloo",
        ),
        (
            ["train", BOARD, "--steps", "1", "--set", "algorithm.normalize=std", "--set", "algorithm=rloo"],
            "settings below it\n  write --set algorithm.name=rloo",
        ),
        (
            ["train", BOARD, "--steps", "1", "--set", "algorithm=cispo"],
            "algorithm.name=NAME with one of grpo, ",
        ),
        (
            ["train", BOARD, "--steps", "1", "--set", "algorithm.name=gspo"],
            "did you mean --set algorithm.loss=gspo?\n",
        ),
        (["train", BOARD, "--steps", "1", "--set", "adapter=full"], "write --set adapter.kind=full"),
        (["train", "tinkergym:TextEnv", "--steps", "1", "--rollout", "server"], "use --rollout client"),
        (["train", BOARD, "--steps", "1", "--rollout", "client", "--env-set", "oponent=x"], "mean opponent?"),
        (["play", BOARD, "--env-set", "oponent=x"], "did you mean opponent?"),
    ],
)
def test_what_to_do_is_said_as_it_is_typed(run, service, arguments, said):
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_rows_that_are_too_long_can_be_left_out_by_the_option_that_the_refusal_names(run, service, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        f'{{"prompt": "{"x" * 3000}", "completion": "y"}}\n{{"prompt": "1?", "completion": "y"}}\n'
    )
    assert "or choose --drop-overlong" in run("sft", str(rows)).output
    assert run("sft", str(rows), "--drop-overlong").exit_code == 0


def test_play_takes_the_model_before_training_and_says_which_versions_are_kept(run, service):
    run("train", BOARD, "--steps", "3")
    assert run("play", BOARD, "--policy", "job-1@0", "--watch").exit_code == 0
    assert {request.policy_version for batch in service.sampled for request in batch} == {0}
    result = run("play", BOARD, "--policy", "job-1@2", "--watch")
    assert (result.exit_code, "versions with a checkpoint: none" in result.output) == (2, True)
    assert run("play", BOARD, "--policy", "job-1@x").exit_code == 2


def test_a_job_may_begin_with_what_another_trained(run, service):
    assert run("train", BOARD, "--steps", "1", "--from", "job-0123456789abcdef").exit_code == 0
    assert service.jobs.newest_first()[0].spec.initial_policy == "job-0123456789abcdef"


def test_a_job_that_waits_says_how_to_play_on(run, service):
    run("train", BOARD, "--steps", "1", "--rollout", "client", "--detach")
    service.jobs.end("job-1", JobState.WAITING_FOR_CLIENT)
    assert "play on: tinkergym jobs attach job-1\n" in run("jobs", "show", "job-1").output
