"""The pages of the environments are what their metadata says, except for the measured numbers."""

import importlib.util
import re
from html import unescape
from pathlib import Path

import gymnasium as gym
import pytest
from markdown_it import MarkdownIt

import tinkergym as tg
from tests.playable import can_play
from tinkergym.registration.listing import ListedEnvironment

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("make_env_pages", ROOT / "scripts" / "make_env_pages.py")
pages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pages)

UPDATE = "run `python scripts/make_env_pages.py` and commit what it writes"


@pytest.fixture(scope="module")
def ours():
    """Return the environments of this repository's packs; each is created for it."""
    return pages.ours()


@pytest.mark.parametrize("name", [name for name in pages.our_ids() if can_play(name)])
def test_keeps_page_up_to_date_with_measured_baselines(ours, name):
    (listed,) = [one for one in ours if one.id == name]
    path = pages.page_path(listed)
    assert path.exists(), UPDATE
    committed = path.read_text(encoding="utf-8")
    measured = pages.measured_block(committed)
    assert committed == pages.page(listed, measured), UPDATE
    rows = re.findall(
        r"^\| (\w+) \| (-?[\d.]+) \| (all equal|.+ to .+) \| (\d+) \| 0 to \d+ \|$", measured, re.M
    )
    means = {name: float(mean) for name, mean, *_ in rows}
    assert "random" in means
    assert all(int(row[3]) >= 20 for row in rows)
    assert means.get("gold", max(means.values())) == max(means.values())


def test_makes_the_overviews_table_from_the_pages(ours):
    committed = pages.OVERVIEW.read_text(encoding="utf-8")
    listed = [one for one in ours if pages.page_path(one).exists()]
    texts = {one.id: pages.page_path(one).read_text(encoding="utf-8") for one in listed}
    assert committed == pages.overview(committed, texts, listed), UPDATE


def test_gives_same_numbers_when_measured_again(ours):
    (bandit,) = [one for one in ours if one.id == "bandit/Bandit-v0"]
    assert pages.measure(bandit, 100) == pages.measure(bandit, 100)
    assert "| 100 | 0 to 99 |" in pages.measure(bandit, 100)


class Wordy(tg.SingleTurnEnv):
    """Asks nothing."""

    def ask(self, options):
        return "?"

    def score(self, answer):
        return 0.0

    def legal_actions(self):
        return ["x"]


@pytest.fixture
def page_with():
    """Return the page of an environment with a given system prompt."""

    def page(prompt):
        gym.register("tests/Wordy-v0", type("Wordy", (Wordy,), {"system_prompt": prompt, "__doc__": "Asks."}))
        try:
            return pages.page(ListedEnvironment(id="tests/Wordy-v0"), "")
        finally:
            del gym.registry["tests/Wordy-v0"]

    return page


@pytest.mark.parametrize(
    "prompt", ["Two\nlines | with a bar.", "A\n\n```\nfence\n```\n| x |", "`a` | b", "``"], ids=repr
)
def test_breaks_no_table_by_a_system_prompt(page_with, prompt):
    html = MarkdownIt().enable("table").render(page_with(prompt))
    rows = re.findall("<tr>(.*?)</tr>", html.split("<h2>")[0], re.DOTALL)
    assert [len(re.findall("<t[dh]", row)) for row in rows] == [2] * 7
    shown = re.findall("<code.*?>(.*?)</code>", html, re.DOTALL)
    assert prompt in [unescape(text).removesuffix("\n") for text in shown]


def test_leaves_no_page_of_a_vanished_environment(ours):
    known = {pages.page_path(one).name for one in ours}
    packs = {name.split("-")[0] for name in known}
    left = {path.name for path in pages.PAGES.glob("*.md") if path.name.split("-")[0] in packs} - known
    assert not left
