"""The process in which ALFWorld's engine runs: `python -m tinkergym_alfworld.worker`.

Each running episode has one. The engine is not thread-safe, exits the process on a malformed problem, and
keeps 34 MB of disk for each instance until the process ends; there is therefore one instance, which loads one
game after another. Requests and responses are lines of JSON. This is the only file that imports the engine.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

from tinkergym.user_code.parent_watch import end_with_parent


class Engine:
    """TextWorld's engine for ALFWorld's problems."""

    def __init__(self) -> None:
        """Import it, and read the domain and the grammar of the package."""
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH
        from textworld.envs import PddlEnv

        _remember_what_was_read()
        self._domain = Path(ALFRED_PDDL_PATH).read_text(encoding="utf-8")
        self._grammar = Path(ALFRED_TWL2_PATH).read_text(encoding="utf-8")
        infos = textworld.EnvInfos(won=True, admissible_commands=True)
        self._env = AlfredDemangler(PddlEnv(infos), shuffle=False)

    def load(self, problem: str, task: str) -> dict[str, Any]:
        """Start a game.

        Only the problem and the task belong to a game. Domain and grammar are the package's: a grammar
        contains Python expressions, which the engine evaluates.

        Args:
            problem: PDDL.
            task: One sentence of only letters, digits and punctuation.
        """
        grammar = self._grammar.replace("UNKNOWN GOAL.", task)
        self._env.load({"pddl_domain": self._domain, "grammar": grammar, "pddl_problem": problem})
        return _shown(self._env.reset())

    def step(self, command: str) -> dict[str, Any]:
        """Execute a command."""
        state, _, _ = self._env.step(command)
        return _shown(state)

    def names(self, ids: list[str]) -> dict[str, str]:
        """Return the engine's names for the objects of the loaded game, by their ids in the problem."""
        infos = self._env.unwrapped._entity_infos
        return {one: infos[one.lower()].name.strip() for one in ids}


def _remember_what_was_read() -> None:
    """Let the engine parse each text once.

    It parses the rule of every possible command in every step and all rules of the grammar for every game,
    and it translates a problem again for each start. Without this, starts and steps take three times as long.
    What the functions return depends on their arguments only and is not changed afterwards.
    """
    import fast_downward
    from textworld.envs.pddl.logic.parser import PddlLogicParser
    from textworld.envs.pddl.textgen.parser import CSGParser
    from textworld.logic.parser import GameLogicParser

    for parser in (CSGParser, GameLogicParser, PddlLogicParser):
        parser.parse = lru_cache(maxsize=2000)(parser.parse)
    # Of one problem: as it is, and made smaller for the search.
    fast_downward.pddl2sas = lru_cache(maxsize=2)(fast_downward.pddl2sas)


def _shown(state: Any) -> dict[str, Any]:
    return {
        "feedback": str(state["feedback"]),
        "commands": list(state["admissible_commands"]),
        "won": bool(state["won"]),
    }


def serve(engine: Any, questions: TextIO, answers: TextIO) -> None:
    """Process requests until there are no more. An engine that exits is treated as an error."""
    for line in questions:
        try:
            question = json.loads(line)
            answer = getattr(engine, question.pop("do"))(**question)
        except BaseException as error:  # the engine raises SystemExit for a malformed problem
            answer = {
                "error": f"{type(error).__name__}: {error}",
                "traceback": traceback.format_exc(limit=-5),
            }
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def streams() -> tuple[TextIO, TextIO]:
    """Return the pipes to the parent; from here on the engine's output goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return sys.stdin, answers


def main() -> None:
    """Run the process."""
    questions, answers = streams()
    end_with_parent()
    serve(Engine(), questions, answers)


if __name__ == "__main__":
    main()
