"""Every settings file of every recipe is one of a job, and its environments take the arguments it gives."""

import inspect
import re
import runpy
import sys
import tomllib
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import tinkergym as tg
from examples.shared.recipe import Recipe
from tinkergym.bridges.openenv import OpenEnvEnv
from tinkergym.bridges.verifiers import VerifiersEnv
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.parsing import parse_spec
from tinkergym.serving.remote_env import RemoteEnv

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(EXAMPLES.glob("*/*.toml"))
KINDS = {"train": "rl", "play": "rl", "show": "sft", "sft": "sft", "preference": "preference"}
OF_THE_SCRIPT = {"episodes", "mistakes", "right", "crossplay_pairs", "games"}
OF_THE_CALL = {"epochs", "on_overlong"}
"""Arguments of `client.sft` and the like that are not settings of the job."""


@pytest.fixture(autouse=True)
def in_an_empty_folder(monkeypatch, tmp_path):
    """A recipe creates the folder of its result when it reads the command line."""
    monkeypatch.chdir(tmp_path)


def forms(file):
    """Yield the settings as they are, short, and in each variant."""
    tables = set(tomllib.loads(file.read_text()))
    options = [[], *([["--short"]] if "short" in tables else [])]
    options += [["--variant", "swapped"]] if "swapped" in tables else []
    for chosen in options:
        yield Recipe.from_command_line(str(file.parent / "train.py"), [file.stem, *chosen])


def job(recipe, stage):
    """Return the specification of a stage's job as the client makes it, or None if it starts none."""
    given = recipe.settings(stage)
    kind = KINDS[stage]
    if kind == "sft" and given["episodes"] == 0:
        return None
    settings = {name: value for name, value in given.items() if name not in OF_THE_SCRIPT | OF_THE_CALL}
    settings["kind"] = kind
    if kind != "rl":
        return parse_spec({"steps": 1, "data": "0" * 64, **settings})
    kwargs = settings.pop("env_kwargs", {})
    if "games" in given:
        settings["environments"] = [
            {"id": name, "weight": weight, "kwargs": dict(*own)} for name, weight, *own in given["games"]
        ]
        return parse_spec(settings)
    name = settings.pop("environment", "") or written_id(recipe.name)
    return parse_spec({**settings, "environment": {"id": name, "kwargs": kwargs}})


def written_id(name):
    """Return the id that the script trains in."""
    text = (EXAMPLES / name / "train.py").read_text()
    return re.search(r'(?:ENV = |client\.train\()"([^"]+)"', text)[1]


def creator(name, recipe):
    """Return what makes an environment or game: a class or a function."""
    if name == "published/Environment-v0":
        bridges = {"verifiers": VerifiersEnv, "openenv": OpenEnvEnv}
        return bridges[recipe.settings("environment")["bridge"]]
    if name == "served/Phone-v0":
        return RemoteEnv
    (found,) = [
        point
        for group in ("tinkergym.envs", "tinkergym.games")
        for point in {point.value: point for point in entry_points(group=group, name=name)}.values()
    ]
    return found.load()


def arguments(made_by, name, recipe):
    """Return the names of all arguments; those of the game too, if it is one against an opponent."""
    functions = [one.__init__ for one in made_by.__mro__[:-1]] if inspect.isclass(made_by) else [made_by]
    names = set()
    for function in functions:
        parameters = inspect.signature(function).parameters.values()
        names |= {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            return names
    if isinstance(made_by, partial):  # A game against an opponent passes the rest on to the game.
        game = made_by.args[0]
        return names | arguments(creator(game, recipe), game, recipe)
    raise AssertionError(f"{name} takes any argument, so a misspelt one is not found")


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_submits_valid_jobs_whose_environments_take_the_arguments(file):
    for recipe in forms(file):
        for stage in KINDS.keys() & recipe.tables.keys():
            spec = job(recipe, stage)
            if spec is None:
                continue
            played = list(spec.own_environments.values())
            for one in [*played, *(spec.environment_of(each) for each in spec.evaluations)]:
                kwargs = dict(one.kwargs)
                if one.id == "published/Environment-v0":
                    kwargs |= recipe.settings("environment")["kwargs"]
                if one.id.startswith("textarena/"):  # which passes them on to TextArena's game
                    tg.make(one.id, **kwargs).reset(seed=0)
                elif kwargs:
                    known = arguments(creator(one.id, recipe), one.id, recipe)
                    assert set(kwargs) <= known, f"[{stage}] {one.id}"


class JobStartedError(Exception):
    """A recipe has started its first job."""


class FirstJob:
    """A client that keeps the data of the first job, and ends the script."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def sft(self, data, **settings):
        raise JobStartedError(data)

    def train(self, *environments, **settings):
        raise JobStartedError(None)


def run(monkeypatch, name, settings):
    """Run a recipe's script with these settings, until it starts a job."""
    Path("own.toml").write_text(settings)
    monkeypatch.setattr(sys, "argv", ["train.py", "own.toml"])
    monkeypatch.setattr(tg, "Client", FirstJob)
    runpy.run_path(str(EXAMPLES / name / "train.py"), run_name="__main__")


@pytest.mark.parametrize("name", ["math_tools", "geometry_tools"])
def test_uses_prompt_of_environment_for_demonstrations_without_one(monkeypatch, name):
    with pytest.raises(JobStartedError) as started:
        run(monkeypatch, name, '[train]\nmodel = "nano-vl"\n[show]\nepisodes = 1\n')
    (data,) = started.value.args
    assert "calculator" in data.read(0)["messages"][0]["content"]


@pytest.mark.parametrize(
    ("name", "settings", "field"),
    [
        ("published_env", '[environment]\nbridge = "verifers"\n[environment.kwargs]\n', "environment.bridge"),
        ("published_env", "[environment.kwargs]\n", "environment.bridge"),
        ("published_env", '[environment]\nbridge = "openenv"\n', "environment.kwargs"),
        ("dialogue", '[train]\nmodel = "nano"\n', "train.environment"),
        ("textarena", '[train]\nmodel = "nano"\n', "train.games"),
        ("two_agent_gomoku", '[train]\nmodel = "nano"\n', "train.crossplay_pairs"),
        ("sft_rl", "[train]\n[sft]\nepisode = 3\n", "sft.episodes"),
    ],
)
def test_names_missing_or_misspelt_setting_of_the_script(monkeypatch, name, settings, field):
    with pytest.raises(InvalidRequestError) as refused:
        run(monkeypatch, name, settings)
    assert refused.value.field == field


def test_finds_misspelt_argument():
    recipe = Recipe.from_command_line(str(EXAMPLES / "gomoku" / "train.py"), [])
    assert "instruction" not in arguments(creator("board/GomokuVs-v0", recipe), "board/GomokuVs-v0", recipe)
    assert "instructions" in arguments(creator("board/GomokuVs-v0", recipe), "board/GomokuVs-v0", recipe)


def test_finds_misspelt_argument_of_a_textarena_game():
    with pytest.raises(InvalidRequestError):
        tg.make("textarena/IteratedPrisonersDilemmaVs-v0", num_round=2).reset(seed=0)


def test_frees_places_of_served_phone_when_episodes_end():
    recipe = Recipe.from_command_line(str(EXAMPLES / "androidworld" / "train.py"), ["gpu"])
    spec = job(recipe, "train")
    played = [*spec.own_environments.values(), *(spec.environment_of(one) for one in spec.evaluations)]
    assert len({one.kwargs["url"] for one in played}) == 2
    assert {one.kwargs.get("hold") for one in played} == {"episode"}
    limits = spec.limits
    for one in played:  # A reset waits for a place, then sets the task up; the episode follows.
        assert one.kwargs["busy_seconds"] < limits.step_timeout_seconds < limits.episode_timeout_seconds


def test_evaluates_every_trained_game_of_textarena():
    spec = job(Recipe.from_command_line(str(EXAMPLES / "textarena" / "train.py"), ["gpu"]), "train")
    assert {spec.environment_of(one).id for one in spec.evaluations} == spec.own_environments.keys()
