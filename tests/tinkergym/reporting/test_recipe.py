import json
from types import SimpleNamespace

import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.reporting.recipe import Recipe
from tinkergym.reporting.recipe_picture import Run
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
def script(tmp_path):
    folder = tmp_path / "bandit"
    folder.mkdir()
    (folder / "laptop.toml").write_text(SETTINGS)
    return str(folder / "train.py")


def test_the_settings_of_a_stage_are_those_of_the_file_and_the_seed(script):
    recipe = Recipe.from_command_line(script, ["--seed", "3"])
    assert recipe.settings("train") == {
        "steps": 100,
        "algorithm": {"name": "grpo", "group_size": 8},
        "seed": 3,
    }


def test_a_short_run_changes_only_what_its_table_says(script):
    settings = Recipe.from_command_line(script, ["--short"]).settings("train")
    assert settings["steps"] == 2
    assert settings["algorithm"] == {"name": "grpo", "group_size": 4}


def test_a_control_shuffles_the_rewards(script):
    assert Recipe.from_command_line(script, ["--control"]).settings("train")["shuffle_rewards"] is True


def test_a_variant_changes_what_its_table_says_also_in_a_short_run(script, tmp_path):
    settings = tmp_path / "bandit" / "laptop.toml"
    settings.write_text(SETTINGS + "[swapped.train]\nenv_kwargs = { swapped = true }\n")
    recipe = Recipe.from_command_line(script, ["--variant", "swapped", "--short"])
    assert recipe.settings("train")["env_kwargs"] == {"swapped": True}
    assert recipe.settings("train")["steps"] == 2
    with pytest.raises(InvalidRequestError) as refused:
        Recipe.from_command_line(script, ["--variant", "sideways"])
    assert refused.value.field == "--variant"


def test_settings_that_are_missing_or_no_toml_are_refused(script, tmp_path):
    with pytest.raises(InvalidRequestError, match="laptop"):
        Recipe.from_command_line(script, ["gpu"])
    with pytest.raises(InvalidRequestError) as refused:
        Recipe.from_command_line(script, []).settings("sft")
    assert refused.value.field == "sft"
    (tmp_path / "bad.toml").write_text("[train")
    with pytest.raises(InvalidRequestError):
        Recipe.from_command_line(script, [str(tmp_path / "bad.toml")])


def test_the_report_keeps_the_first_evaluations_curve_and_can_be_read_again(script, tmp_path, capsys):
    done = [
        EvaluationEvent(
            name=name,
            step=step,
            policy_version=step,
            episodes=9,
            failed_episodes=0,
            mean=mean,
            low=0.0,
            high=1.0,
        )
        for name, step, mean in [("a", 0, 0.2), ("b", 0, 0.9), ("a", 2, 0.6)]
    ]
    job = SimpleNamespace(id="job-1", steps=lambda: [], evaluations=lambda: done)
    recipe = Recipe.from_command_line(script, ["--out", str(tmp_path / "out")])
    path = recipe.report(job, regret=0.5)
    run = Run.from_json(json.loads(path.read_text()))
    assert [tuple(one) for one in run.evaluations] == [(0, 0.2, 0.0, 1.0), (2, 0.6, 0.0, 1.0)]
    assert run.facts == {"regret": 0.5}
    assert "+0.600" in capsys.readouterr().out


def test_short_runs_and_other_settings_do_not_replace_a_result(script, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text("[train]\nsteps = 2\n")
    job = SimpleNamespace(id="job-1", steps=lambda: [], evaluations=lambda: [])
    runs = [[], ["--short"], ["--control"], ["--seed", "1"], [str(other)], [str(other), "--short"]]
    paths = {
        Recipe.from_command_line(script, [*options, "--out", str(tmp_path / "out")]).report(job)
        for options in runs
    }
    assert len(paths) == len(runs)
    assert {path.parent for path in paths} == {tmp_path / "out"}
