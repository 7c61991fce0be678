import json

import pytest

BOARD = "board/TicTacToeVs-v0"


def test_prints_each_training_step_and_where_to_go_next(run, service):
    result = run("train", BOARD, "--steps", "3")
    assert result.exit_code == 0
    assert "step 3/3  reward" in result.output
    assert "tinkergym play board/TicTacToeVs-v0 --policy job-1" in result.output


def test_names_several_environments_with_their_weights(run, start_service):
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
def test_rejects_environments_that_are_not_named_one_way(run, service, arguments):
    result = run("train", *arguments, "--steps", "2")
    assert (result.exit_code, "error: " in result.output) == (2, True)
    assert service.jobs.newest_first() == []


def test_reports_new_and_running_jobs_to_named_trackers(run, service, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("train", BOARD, "--steps", "3", "--report-to", "jsonl").exit_code == 0
    assert run("jobs", "attach", "job-1", "--report-to", "csv", "--report-to", "jsonl").exit_code == 0
    files = {
        path.name: len(path.read_text().splitlines()) for path in (tmp_path / "runs" / "job-1").iterdir()
    }
    assert files == {"metrics.jsonl": 3, "metrics.csv": 4, "notes.jsonl": 1}
    assert run("train", BOARD, "--steps", "3", "--report-to", "excel").exit_code != 0
    assert len(service.jobs.newest_first()) == 1


def test_passes_options_and_settings_to_the_job(run, service):
    algorithm = ["--group-size", "4", "--groups", "3", "--learning-rate", "0.01"]
    others = ["--rank", "2", "--env-set", "size=5", "--set", "sampling.temperature=0.5", "--set", "seed=7"]
    result = run("train", BOARD, "--steps", "1", *algorithm, *others)
    assert result.exit_code == 0
    spec = service.jobs.newest_first()[0].spec
    assert (spec.algorithm.group_size, spec.algorithm.groups_per_step) == (4, 3)
    assert (spec.adapter.rank, spec.algorithm.learning_rate, spec.seed) == (2, 0.01, 7)
    assert (spec.sampling.temperature, spec.environment.kwargs) == (0.5, {"size": 5})


def test_prints_estimate_instead_of_training(run, service):
    result = run("train", BOARD, "--steps", "300", "--estimate")
    assert (result.exit_code, "300 steps, about" in result.output) == (0, True), result.output
    assert json.loads(run("train", BOARD, "--steps", "300", "--estimate", "--json").stdout)["steps"] == 300
    assert service.jobs.newest_first() == []


def test_rejects_unknown_environment(run, service):
    result = run("train", "board/Checkers-v0", "--steps", "1")
    assert result.exit_code == 2
    assert "error: environment.id:" in result.output


def test_rejects_module_that_is_not_there(run, service):
    result = run("train", "nowhere:Env", "--steps", "1")
    assert result.exit_code == 2
    assert "module:ClassName" in result.output


def test_starts_no_job_of_a_script_imported_for_its_class(run, service, tmp_path, monkeypatch):
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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--full", "--rank", "4"], "error: adapter.rank: unknown setting"),
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
def test_rejects_what_is_said_twice_or_without_meaning(run, service, options, words):
    result = run("train", BOARD, "--steps", "1", *options)
    assert result.exit_code != 0
    assert words in " ".join(result.output.split())


def test_begins_job_with_what_another_trained(run, service):
    assert run("train", BOARD, "--steps", "2").exit_code == 0
    assert run("train", BOARD, "--steps", "1", "--from", "job-1").exit_code == 0
    assert service.jobs.newest_first()[0].spec.initial_policy == "job-1@2"
