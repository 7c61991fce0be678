"""Templates of `tinkergym new-env`: two kinds of environments, with tasks drawn or read from a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPack:
    """The pack's name and the kind of its first environment."""

    name: str
    """As typed: `my-game`."""
    turns: Literal["single", "multi"]
    data: Literal["free", "dependent"]

    @property
    def package(self) -> str:
        """The package to import. The prefix avoids hiding another package, such as `chess`."""
        return f"tinkergym_{self.name.replace('-', '_')}"

    @property
    def distribution(self) -> str:
        """The distribution name for pip."""
        return self.package.replace("_", "-")

    @property
    def class_name(self) -> str:
        """The environment's class name, without `Env`."""
        return "".join(part.capitalize() for part in self.name.replace("_", "-").split("-"))

    @property
    def env_id(self) -> str:
        """The id for `tinkergym.make`."""
        return f"{self.name}/{self.class_name}-v0"

    def files(self) -> dict[str, str]:
        """Return the pack's files by their paths in its folder."""
        files = {
            "pyproject.toml": self._filled(_PYPROJECT),
            f"{self.package}/__init__.py": self._filled(_MODULE),
            f"test_{self.package}.py": self._filled(_TEST),
        }
        if self.data == "dependent":
            files[f"{self.package}/data/train.jsonl"] = _TASKS[self.turns]
        return files

    def _filled(self, template: str) -> str:
        text = template
        # The templates contain braces of Python and TOML, so placeholders use another syntax.
        for gap, value in {
            "<BODY>": _BODIES[self.turns],
            "<DRAW>": _DRAWS[self.turns, self.data],
            "<IMPORTS>": _IMPORTS[self.data],
            "<DATA>": '\n[tool.setuptools.package-data]\n"*" = ["data/*.jsonl"]\n'
            * (self.data == "dependent"),
            "<INIT>": _INIT * (self.data == "dependent"),
            "<PACKAGE>": self.package,
            "<DISTRIBUTION>": self.distribution,
            "<CLASS>": self.class_name,
            "<ID>": self.env_id,
        }.items():
            text = text.replace(gap, value)
        return text


_PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "<DISTRIBUTION>"
version = "0.1.0"
dependencies = ["tinkergym"]

[project.entry-points."tinkergym.envs"]
"<ID>" = "<PACKAGE>:<CLASS>Env"

[tool.setuptools]
packages = ["<PACKAGE>"]
<DATA>"""

_IMPORTS = {
    "free": "import tinkergym as tg\n",
    "dependent": "from pathlib import Path\n\nimport tinkergym as tg\n",
}

_MODULE = """\
<IMPORTS>

<BODY>"""

_INIT = """\
    def __init__(self, split="train", render_mode=None):
        super().__init__(render_mode)
        self.tasks = tg.tasks.JsonlTasks(Path(__file__).parent / "data", split=split)

"""

_BODIES = {
    "single": '''\
class <CLASS>Env(tg.SingleTurnEnv):
    """One question, one answer."""

    system_prompt = "Answer with the number, nothing else."

<INIT>    def ask(self, options):
<DRAW>
    def score(self, answer):
        return float(answer.strip() == self.answer)

    def gold_action(self):
        return self.answer
''',
    "multi": '''\
class <CLASS>Env(tg.TextEnv):
    """Find the secret number; each answer narrows it down."""

    system_prompt = "Answer with a number, nothing else."

<INIT>    def start(self, options):
<DRAW>
    def reply(self, action):
        guess = int(action) if action.strip().isdecimal() and len(action) < 9 else 0
        self.left -= 1
        if guess == self.secret or self.left == 0:
            return "Right." if guess == self.secret else "Too late.", float(guess == self.secret), True
        return "Higher." if guess < self.secret else "Lower.", 0.0, False

    def gold_action(self):
        return str(self.secret)
''',
}

_DRAWS = {
    ("single", "free"): """\
        a, b = self.np_random.integers(10, size=2)
        self.answer = str(a + b)
        return f"{a} + {b} = ?"
""",
    ("single", "dependent"): """\
        _, task = self.tasks.choose(self.np_random, options)
        self.answer = task["answer"]
        return task["question"]
""",
    ("multi", "free"): """\
        self.secret, self.left = int(self.np_random.integers(1, 21)), 5
        return "I think of a number from 1 to 20. You have 5 guesses."
""",
    ("multi", "dependent"): """\
        _, task = self.tasks.choose(self.np_random, options)
        self.secret, self.left = task["secret"], 5
        return f"{task['hint']} You have 5 guesses."
""",
}

_TASKS = {
    "single": """\
{"question": "2 + 3 = ?", "answer": "5"}
{"question": "9 - 4 = ?", "answer": "5"}
{"question": "3 * 4 = ?", "answer": "12"}
""",
    "multi": """\
{"hint": "Legs of a spider?", "secret": 8}
{"hint": "Days of a week?", "secret": 7}
{"hint": "Months of a year?", "secret": 12}
""",
}

_TEST = """\
from tinkergym.testing import EnvContract


class Test<CLASS>(EnvContract):
    environment_id = "<ID>"
"""
