import importlib.util
import re
import sys
import types
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinkergym as tg
from tinkergym.testing.checks_subject import Subject
from tinkergym.testing.contract_checks import Outcome, run_checks

DOCS = Path(__file__).parents[2] / "docs" / "guides"
BLOCK = re.compile(r"```python( needs (?P<needs>\w+))?\n(?P<code>.*?)```", re.DOTALL)
CASES = [
    pytest.param(page, found["code"], found["needs"], id=f"{page} {number}")
    for page in ("tools.md", "rewards.md")
    for number, found in enumerate(BLOCK.finditer((DOCS / page).read_text(encoding="utf-8")))
]


@pytest.mark.parametrize(("page", "code", "needs"), CASES)
def test_runs_the_code_on_page_as_it_stands(page, code, needs, monkeypatch):
    if needs and importlib.util.find_spec(needs) is None:
        pytest.skip(f"needs {needs}")
    module = types.ModuleType("a_page")
    monkeypatch.setitem(sys.modules, "a_page", module)
    exec(compile(code, page, "exec"), module.__dict__)


def test_finds_pages_to_run():
    assert len(CASES) >= 7


HOSTILE = ["²", "--5", "-", "", " ", "٣", "1" * 5000, "-" * 5000 + "1", "0x10", "1e3", "1_0", "½", "nan"]


@given(st.one_of(st.sampled_from(HOSTILE), st.text(), st.from_regex(r"-{0,3}[0-9²٣]{0,12}")))
def test_judges_every_text_by_gated_rubric_of_the_page(answer):
    reward = page_rubric().score(answer=answer, gold="42").reward
    assert 0 <= reward <= 1.2
    if answer in HOSTILE:
        assert reward == 0


def test_passes_checks_by_environment_with_the_pages_rubric():
    rubric = page_rubric()

    class Sums(tg.SingleTurnEnv):
        def ask(self, options):
            self.left, self.right = map(int, self.np_random.integers(10, size=2))
            return f"{self.left}+{self.right}="

        def score(self, answer):
            return rubric.score(answer=answer, gold=str(self.left + self.right))

    outcomes = {r.name: (r.outcome, r.message) for r in run_checks(Subject(make=Sums))}
    assert not [name for name, (outcome, _) in outcomes.items() if outcome is Outcome.FAILED], outcomes


@cache
def page_rubric():
    names = {}
    blocks = BLOCK.finditer((DOCS / "rewards.md").read_text(encoding="utf-8"))
    exec(next(found["code"] for found in blocks if "def is_number" in found["code"]), names)
    return names["rubric"]
