"""EnvContract: the guarantees of every environment as tests to inherit."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import gymnasium as gym

from tinkergym.registration.environments import make
from tinkergym.testing.checks_subject import Subject
from tinkergym.testing.contract_checks import CHECKS, Check, Outcome, run_checks


class EnvContract:
    """Inherit it and set the environment; pytest then has a test for each check of `tinkergym check`.

    Example:
        >>> class TestBandit(EnvContract):
        ...     environment_id = "bandit/Bandit-v0"
    """

    environment_id: ClassVar[str] = ""
    kwargs: ClassVar[Mapping[str, Any]] = {}

    def make(self) -> gym.Env[Any, Any]:
        """Create the environment; override it for an unregistered one."""
        return make(self.environment_id, **self.kwargs)

    def actions(self, seed: int) -> list[str] | None:
        """Return actions to play with; None uses legal ones and words of the observations.

        Override it if the environment has no `legal_actions()` and random words end it at once.
        """
        del seed
        return None


def _test_of(check: Check) -> Callable[[EnvContract], None]:
    def test(self: EnvContract) -> None:
        actions = self.actions if self.actions(0) is not None else None
        subject = Subject(make=self.make, actions=actions)  # type: ignore[arg-type]
        (result,) = run_checks(subject, [check])
        if result.outcome is Outcome.SKIPPED:
            # Supported by both pytest and unittest.
            raise unittest.SkipTest(result.message)
        assert result.outcome is Outcome.OK, f"{result.what}: {result.message} ({result.hint})"

    test.__doc__ = f"{check.what}."
    return test


for _check in CHECKS:
    setattr(EnvContract, f"test_{_check.name.replace(' ', '_')}", _test_of(_check))
