import json
from types import SimpleNamespace

import pytest

from examples.shared.recipe import Recipe
from examples.shared.recipe_picture import Run
from tests.tinkergym.reporting.jobs import step_event
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.events import EvaluationEvent

SETTINGS = """
[train]
steps = 100
algorithm = { name = "grpo", group_size = 8 }
[short.train]
steps = 2
algorithm = { group_size = 4 }
"""


@pytest.fixture
def script(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "bandit"
    folder.mkdir()
    (folder / "laptop.toml").write_text(SETTINGS)
    return str(folder / "train.py")


def test_takes_settings_of_stage_from_file_and_seed(script):
    recipe = Recipe.from_command_line(script, ["--seed", "3"])
    assert recipe.settings("train") == {
        "steps": 100,
        "algorithm": {"name": "grpo", "group_size": 8},
        "seed": 3,
    }


def test_changes_in_short_run_only_what_its_table_says(script):
    settings = Recipe.from_command_line(script, ["--short"]).settings("train")
    assert settings["steps"] == 2
    assert settings["algorithm"] == {"name": "grpo", "group_size": 4}


def test_shuffles_the_rewards_of_a_control(script):
    assert Recipe.from_command_line(script, ["--control"]).settings("train")["shuffle_rewards"] is True


def test_applies_changes_of_variants_table_also_in_short_run(script, tmp_path):
    settings = tmp_path / "bandit" / "laptop.toml"
    settings.write_text(SETTINGS + "[swapped.train]\nenv_kwargs = { swapped = true }\n")
    recipe = Recipe.from_command_line(script, ["--variant", "swapped", "--short"])
    assert recipe.settings("train")["env_kwargs"] == {"swapped": True}
    assert recipe.settings("train")["steps"] == 2
    with pytest.raises(InvalidRequestError) as refused:
        Recipe.from_command_line(script, ["--variant", "sideways"])
    assert refused.value.field == "--variant"


@pytest.mark.parametrize(
    ("options", "field"),
    [(["--variant", "train"], "--variant"), (["--variant", "short"], "--variant"), (["--short"], "--short")],
)
def test_rejects_option_that_would_change_nothing(script, tmp_path, options, field):
    other = tmp_path / "other.toml"
    other.write_text("[train]\nsteps = 2\n")
    with pytest.raises(InvalidRequestError) as refused:
        Recipe.from_command_line(script, [str(other), *options])
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("tables", "options", "field"),
    [
        ("[swapped.trian]\nsteps = 1\n", ["--variant", "swapped"], "swapped.trian"),
        ("[short.trian]\nsteps = 1\n", ["--short"], "short.trian"),
        ("[swapped.swapped]\nsteps = 1\n", ["--variant", "swapped"], "swapped.swapped"),
    ],
)
def test_overrides_of_a_table_that_does_not_exist_are_refused(script, tmp_path, tables, options, field):
    other = tmp_path / "other.toml"
    other.write_text("[train]\nsteps = 2\n" + tables)
    with pytest.raises(InvalidRequestError) as refused:
        Recipe.from_command_line(script, [str(other), *options])
    assert refused.value.field == field


def test_names_missing_setting_that_the_script_needs(script):
    recipe = Recipe.from_command_line(script, [])
    assert recipe.settings("train", needs=["steps"])["steps"] == 100
    with pytest.raises(InvalidRequestError) as refused:
        recipe.settings("train", needs=["steps", "environment"])
    assert refused.value.field == "train.environment"


@pytest.mark.parametrize("show", [{"episode": 3000}, *({"episodes": n} for n in ("5", 2.5, True, -1))])
def test_rejects_invalid_number_of_demonstrations(tmp_path, show):
    recipe = Recipe(name="r", tables={"show": show}, out=tmp_path)
    with pytest.raises(InvalidRequestError) as refused:
        recipe.imitate(None, lambda count: [])
    assert refused.value.field == "show.episodes"


def test_never_overrides_command_lines_seed_silently_by_the_file(script, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text("[train]\nseed = 3\n")
    with pytest.raises(InvalidRequestError) as caught:
        Recipe.from_command_line(script, [str(other), "--seed", "1"]).settings("train")
    assert caught.value.field == "train.seed"


def test_names_setting_that_the_demonstrations_lack(tmp_path):
    recipe = Recipe(name="r", tables={"show": {"episodes": 2}}, out=tmp_path)
    with pytest.raises(InvalidRequestError) as refused:
        recipe.imitate(None, lambda count, mistakes: [], own=["mistakes"])
    assert refused.value.field == "show.mistakes"


def test_rejects_settings_that_are_missing_or_no_toml(script, tmp_path):
    with pytest.raises(InvalidRequestError, check=lambda error: error.code == "missing_file"):
        Recipe.from_command_line(script, ["gpu"])
    with pytest.raises(InvalidRequestError) as refused:
        Recipe.from_command_line(script, []).settings("sft")
    assert refused.value.field == "sft"


@pytest.mark.parametrize(
    "content",
    [
        b"[train",
        "[train]\n".encode("utf-16"),
        "# \u00fc\n[train]\n".encode("latin-1"),
        b"a = " + b"[" * 5000 + b"]" * 5000,
        b"a = " + b"9" * 5000,
    ],
    ids=["a typo", "UTF-16", "Latin-1", "deep", "many digits"],
)
def test_rejects_file_that_is_not_toml(script, tmp_path, content):
    (tmp_path / "bad.toml").write_bytes(content)
    with pytest.raises(InvalidRequestError, check=lambda error: error.code == "not_toml"):
        Recipe.from_command_line(script, [str(tmp_path / "bad.toml")])


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_rejects_seed_that_no_job_can_have(script, seed):
    with pytest.raises(InvalidRequestError) as refused:
        Recipe.from_command_line(script, ["--seed", str(seed)])
    assert refused.value.field == "--seed"


def evaluation(name, step, mean):
    return EvaluationEvent(
        name=name, step=step, policy_version=step, episodes=9, failed_episodes=0, mean=mean, low=0.0, high=1.0
    )


def ended(*evaluations, steps=()):
    return SimpleNamespace(id="job-1", steps=lambda: list(steps), evaluations=lambda: list(evaluations))


def step(number, **metrics):
    return step_event(number, number, metrics=metrics).body


def test_reports_every_evaluation_by_name_and_reads_it_again(script, tmp_path, capsys):
    job = ended(evaluation("a", 0, 0.2), evaluation("b", 0, 0.9), evaluation("a", 2, 0.6))
    recipe = Recipe.from_command_line(script, ["--out", str(tmp_path / "out")])
    path = recipe.report(job, regret=0.5)
    run = Run.from_json(json.loads(path.read_text()))
    assert [tuple(one) for one in run.evaluations["a"]] == [(0, 0.2, 0.0, 1.0), (2, 0.6, 0.0, 1.0)]
    assert [tuple(one) for one in run.evaluations["b"]] == [(0, 0.9, 0.0, 1.0)]
    assert run.facts == {"regret": 0.5}
    printed = capsys.readouterr().out
    assert "+0.600" in printed
    assert "+0.900" in printed


def test_keeps_several_metrics_and_names_one_no_step_has(script, tmp_path, capsys):
    job = ended(steps=[step(1, x=0.1, y=3.0), step(2, x=0.2)])
    recipe = Recipe.from_command_line(script, ["--out", str(tmp_path)])
    run = Run.from_json(json.loads(recipe.report(job, metric=["x", "y", "z"]).read_text()))
    assert run.metrics == {"x": [[1, 0.1], [2, 0.2]], "y": [[1, 3.0]], "z": []}
    assert "z: no train step" in capsys.readouterr().out


def test_says_control_in_its_report_and_keeps_facts_in_result(script, tmp_path, capsys):
    recipe = Recipe.from_command_line(script, ["--out", str(tmp_path), "--control"])
    recipe.settings("train")
    games = {"games": [[0.5] * 10] * 10}
    run = Run.from_json(json.loads(recipe.report(ended(), crossplay=games, regret=0.5).read_text()))
    assert run.facts == {"crossplay": games, "regret": 0.5}
    printed = capsys.readouterr().out
    assert printed.startswith("control: ")
    assert "regret: 0.5\n" in printed
    assert "crossplay: see the result\n" in printed
    recipe = Recipe.from_command_line(script, ["--out", str(tmp_path)])
    recipe.report(ended())
    assert not capsys.readouterr().out.startswith("control")


@pytest.mark.parametrize("out", ["file", "file/below", "a" * 300])
def test_rejects_folder_that_cannot_hold_the_result_before_run(script, tmp_path, out):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequestError) as refused:
        Recipe.from_command_line(script, ["--out", out])
    assert refused.value.field == "--out"


def test_makes_empty_folder_of_the_result_before_the_run(script, tmp_path):
    Recipe.from_command_line(script, ["--out", str(tmp_path / "new" / "out")])
    assert list((tmp_path / "new" / "out").iterdir()) == []


def test_prints_result_that_cannot_be_written(script, tmp_path, capsys):
    recipe = Recipe.from_command_line(script, ["--out", "out"])
    (tmp_path / "out" / "seed-0.json").mkdir()
    with pytest.raises(IsADirectoryError):
        recipe.report(ended(evaluation("a", 0, 0.2)), regret=0.5)
    assert json.loads(capsys.readouterr().out)["facts"] == {"regret": 0.5}


def test_keeps_result_when_picture_cannot_be_written(script, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    recipe = Recipe.from_command_line(script, ["--out", "out"])
    (tmp_path / "out" / "seed-0.png").mkdir()
    assert recipe.report(ended(evaluation("a", 0, 0.2))).exists()
    assert "no picture" in capsys.readouterr().out


def test_keeps_result_beside_short_runs_and_other_settings(script, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text("[train]\nsteps = 2\n[short.train]\nsteps = 1\n")
    runs = [[], ["--short"], ["--control"], ["--seed", "1"], [str(other)], [str(other), "--short"]]
    paths = []
    for options in runs:
        recipe = Recipe.from_command_line(script, [*options, "--out", str(tmp_path / "out")])
        recipe.settings("train")
        paths.append(recipe.report(ended()))
    assert len(set(paths)) == len(runs)
    assert {path.parent for path in paths} == {tmp_path / "out"}
    stored = [json.loads(path.read_text()) for path in (paths[0], paths[1], paths[5])]
    assert [(one["settings"], one["short"]) for one in stored] == [
        ("laptop", False),
        ("laptop", True),
        ("other", True),
    ]


def test_rejects_control_that_was_never_one(script, tmp_path):
    given = ["--control", "--out", str(tmp_path / "out")]
    with pytest.raises(InvalidRequestError) as refused:
        Recipe.from_command_line(script, given).report(ended())
    assert refused.value.field == "--control"
    shuffled = Recipe.from_command_line(script, given)
    shuffled.settings("train")
    assert shuffled.report(ended()).exists()
    own = Recipe.from_command_line(script, given)
    assert own.own_control()
    assert own.report(ended()).exists()
    assert not Recipe.from_command_line(script, []).own_control()


def test_reads_old_result_with_one_evaluation_and_one_metric():
    old = {"recipe": "bandit", "seed": 0, "control": False, "seconds": 1.0, "rewards": []}
    run = Run.from_json(old | {"evaluations": [[0, 0.1, None, None]], "metric": "x", "metrics": [[1, 2.0]]})
    assert run.evaluations == {"": [[0, 0.1, None, None]]}
    assert run.metrics == {"x": [[1, 2.0]]}
    empty = Run.from_json(old | {"evaluations": [], "metric": "", "metrics": []})
    assert (empty.evaluations, empty.metrics) == ({}, {})


@pytest.mark.parametrize(("episodes", "expected"), [(0, {}), (2, {"initial_policy": "job-1"})])
def test_imitates_demonstrations_if_settings_ask_for_any(monkeypatch, tmp_path, episodes, expected):
    started = []

    class Client:
        def sft(self, data, **settings):
            started.append(([data.read(number) for number in range(len(data))], settings))
            return ended()

    monkeypatch.setattr(Recipe, "watch", lambda self, job: None)
    show = {"episodes": episodes, "mistakes": 0.5, "epochs": 3}
    recipe = Recipe(name="r", tables={"show": show}, out=tmp_path)

    def demonstrations(count, mistakes):
        return ({"messages": [number, mistakes]} for number in range(count))

    assert recipe.imitate(Client(), demonstrations, own=["mistakes"]) == expected
    rows = [{"messages": [number, 0.5]} for number in range(2)]
    assert started == ([(rows, {"epochs": 3, "seed": 0})] if episodes else [])
