"""The tutorials do what they say, from the first line to the last."""

import json
import re
import sys
from pathlib import Path

import pytest

from scripts.docs_reference import SETTINGS_PAGE, settings_page
from tinkergym.schema import algorithm_registry

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GUIDES = sorted((DOCS / "guides").glob("*.md"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_shows_the_settings_of_the_service_in_the_repository():
    assert SETTINGS_PAGE.read_text() == settings_page(), "run `python -m scripts.docs_reference`"


def test_runs_the_quickstart_from_top_to_bottom(reader):
    reader.follow(DOCS / "quickstart.md")


def test_runs_write_an_environment_from_top_to_bottom(reader):
    reader.follow(DOCS / "guides" / "environments.md")


def test_runs_parallel_games_from_top_to_bottom(reader):
    reader.follow(DOCS / "guides" / "parallel_games.md")


@pytest.mark.full("starts a program and two commands")
def test_runs_train_any_agent_program_from_top_to_bottom(reader):
    reader.follow(DOCS / "guides" / "agent_programs.md")


@pytest.mark.full("starts a command for each of many blocks")
def test_runs_batch_inference_from_top_to_bottom(reader):
    reader.follow(DOCS / "guides" / "batch_inference.md")


def test_runs_serve_a_policy_from_top_to_bottom(reader):
    reader.follow(DOCS / "guides" / "serve_policy.md")


def test_begins_each_guide_with_at_most_ten_lines():
    first = {
        page.stem: re.search(r"^```.*\n((?s:.*?))^```$", page.read_text(), re.MULTILINE)[1] for page in GUIDES
    }
    long = {
        page: text for page, text in first.items() if len(list(filter(str.strip, text.splitlines()))) > 10
    }
    assert not long


def test_runs_first_examples_and_pages_of_those_from_elsewhere(reader):
    """Those that a service without a model can run, in one process: its start takes longer than they do."""
    blocks = [
        re.sub(r"steps=\d+", "steps=1", text)
        for page in GUIDES
        for text in re.findall(r"^```python first\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    ]
    assert len(blocks) == 5
    pages = sorted((DOCS / "coming_from").glob("*.md"))
    assert len(pages) == 5
    blocks += [text for page in pages for text in reader.write_files(page)]
    reader.python("\n".join(blocks))


@pytest.mark.full("installs a package")
def test_installs_and_names_the_algorithm_of_the_page(reader, monkeypatch):
    monkeypatch.syspath_prepend(reader.environ["PYTHONPATH"])  # The service has the pack, too.
    algorithm_registry.forget_packs()
    reader.follow(DOCS / "guides" / "own_algorithm.md")
    algorithm_registry.forget_packs()


@pytest.mark.full("builds and installs wheels")
def test_builds_installs_and_finds_the_published_pack(reader):
    reader.follow(DOCS / "guides" / "packs.md")
    listed = json.loads(reader.run([sys.executable, "-m", "tinkergym.cli.main", "envs", "riddles", "--json"]))
    (riddles,) = [one for one in listed["environments"] if one["pack"] == "riddles"]
    assert (riddles["turns"], riddles["data"], riddles["version"]) == ("single", "dependent", "0.2.0")
    assert sorted(riddles["splits"]) == ["test", "train"]
    assert list((reader.folder / "dist").glob("*.whl"))


def test_trains_smallest_environment_in_ten_lines_on_top_of_readme(reader):
    commands, block = re.search(r"\A(.*?)```python\n(.*?)```", README, re.DOTALL).groups()
    assert "make demo" in commands
    assert len(commands.splitlines()) < 25
    assert len(block.splitlines()) <= 10
    assert "SingleTurnEnv" in block
    reader.python(block.replace("steps=50", "steps=1") + "assert job.wait().state == 'completed'")
