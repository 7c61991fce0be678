"""All checks of an environment by name: `tinkergym check` prints them, `EnvContract` runs them in pytest."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tinkergym.errors import TinkerGymError, UnknownEnvironmentError
from tinkergym.testing import checks_interface, checks_seeding, checks_task
from tinkergym.testing.checks_game import api, seeds
from tinkergym.testing.checks_subject import (
    MOST_STEPS,
    CheckFailedError,
    CheckSkippedError,
    Subject,
    TooSlowError,
    time_limit,
)

CHECK_SECONDS = 120.0
"""A single check that takes longer fails."""


class Outcome(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One guarantee of an environment."""

    name: str
    what: str
    """The guarantee as a sentence."""
    run: Callable[[Subject], None]
    hint: str
    """What to do if the failure itself does not say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of one check."""

    name: str
    what: str
    outcome: Outcome
    message: str = ""
    """Why it failed or was skipped."""
    hint: str = ""
    """What to do."""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "check": self.name,
            "outcome": self.outcome.value,
            "message": self.message,
            "hint": self.hint,
            "seconds": round(self.seconds, 3),
        }


def _check(name: str, run: Callable[[Subject], None], hint: str = "fix what the message names") -> Check:
    return Check(name=name, what=(run.__doc__ or name).split("\n")[0].rstrip("."), run=run, hint=hint)


_NO_RAISE = "an environment must not raise while it is played"

CHECKS = (
    _check("gymnasium", checks_interface.gymnasium_checker, "Gymnasium's message says what it expects"),
    _check("text", checks_interface.text, _NO_RAISE),
    _check("hostile text", checks_interface.hostile_text, _NO_RAISE),
    _check("large action", checks_interface.large_action, _NO_RAISE),
    _check("same seed", checks_seeding.same_seed, _NO_RAISE),
    _check("different seeds", checks_seeding.different_seeds, _NO_RAISE),
    _check("global randomness", checks_seeding.global_randomness, _NO_RAISE),
    _check("independent instances", checks_seeding.independent_instances, _NO_RAISE),
    _check("interleaving", checks_seeding.interleaving, _NO_RAISE),
    _check("json", checks_interface.json_info, _NO_RAISE),
    _check("deltas", checks_task.deltas, _NO_RAISE),
    _check("gold answer", checks_task.gold, _NO_RAISE),
    _check("grid cell", checks_task.grid_cell, _NO_RAISE),
    _check("rebuilds from its spec", checks_interface.rebuilds, _NO_RAISE),
    _check("closes twice", checks_interface.closes_twice, "make the second close() do nothing"),
)
"""Checks of a Gymnasium environment."""

GAME_CHECKS = (
    _check("pettingzoo api", api, "PettingZoo's message says what it expects"),
    _check("pettingzoo seeds", seeds, "take all randomness from a generator created in reset(seed)"),
    _check("global randomness", checks_seeding.game_global_randomness, _NO_RAISE),
)
"""Checks of a PettingZoo game."""

_RESET = _check("reset", checks_interface.resets, "fix what it names: every episode begins with reset")
_STEP = _check(
    "step",
    checks_interface.steps,
    "fix what it names; a bad action may cost something, but a model in training may give any answer",
)


def checks_for(made: object) -> tuple[Check, ...]:
    """Return the checks that apply: those of a turn-based game, or those of an environment."""
    return GAME_CHECKS if hasattr(made, "agent_iter") else CHECKS


def run_checks(subject: Subject, checks: Iterable[Check] | None = None) -> Iterator[CheckResult]:
    """Run checks one after the other; yields each result.

    Args:
        subject: The environment under test.
        checks: The checks; None means those that apply. If the environment cannot even be reset and stepped
            once, that is the only failure and all checks are skipped, because most would fail for the same
            reason.

    Raises:
        UnknownEnvironmentError: The environment is unknown.
    """
    if checks is None:
        try:
            made = subject.make()
            checks = checks_for(made)
            made.close()
        except UnknownEnvironmentError:
            raise
        # Foreign code; without an environment there is nothing else to check.
        except Exception as error:
            # Our own errors already say what to do.
            mends = isinstance(error, TinkerGymError) and error.hint
            yield CheckResult(
                name="make",
                what="It can be created",
                outcome=Outcome.FAILED,
                message=_said(error),
                hint="" if mends else "fix the constructor, or pass its arguments",
            )
            return
        for first in (_RESET,) if checks is GAME_CHECKS else (_RESET, _STEP):
            result = _run(first, subject)
            if result.outcome is Outcome.FAILED:
                yield result
                yield from (_not_run(check, first) for check in checks)
                return
    for check in checks:
        yield _run(check, subject)


def _not_run(check: Check, cause: Check) -> CheckResult:
    message = f"not run: {cause.name} failed"
    return CheckResult(name=check.name, what=check.what, outcome=Outcome.SKIPPED, message=message)


def _run(check: Check, subject: Subject) -> CheckResult:
    began = time.monotonic()
    outcome, message, hint = Outcome.OK, "", ""
    try:
        with time_limit(CHECK_SECONDS), subject.closing() as closed:
            check.run(closed)
    except CheckSkippedError as error:
        outcome, message, hint = Outcome.SKIPPED, error.message, error.hint
    except CheckFailedError as error:
        outcome, message, hint = Outcome.FAILED, error.message, error.hint
    except TooSlowError:
        outcome, message = Outcome.FAILED, f"it takes more than {CHECK_SECONDS:g} s"
        hint = f"an episode of the checks has at most {MOST_STEPS} steps; look for code that waits or loops"
    # Foreign code, and a checker that raises AssertionError.
    except Exception as error:
        outcome, message, hint = Outcome.FAILED, _said(error), check.hint
    return CheckResult(
        name=check.name,
        what=check.what,
        outcome=outcome,
        message=message,
        hint=hint,
        seconds=time.monotonic() - began,
    )


def _said(error: Exception) -> str:
    if isinstance(error, TinkerGymError):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
