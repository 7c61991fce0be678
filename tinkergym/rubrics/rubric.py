"""Rubric: a reward as the weighted sum of named terms. A term without a value is an error, never 0."""

from __future__ import annotations

import inspect
import math
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from tinkergym.errors import InvalidRequestError, InvalidRewardError
from tinkergym.trajectory.trajectory import MEAN
from tinkergym.user_code.returned_values import finite_number, settled

PREFIX = "reward/"
"""Prefix of a term's name in the metrics."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_MOST_TRACEBACK_CHARACTERS = 4_000

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Term:
    """One criterion for an answer."""

    name: str
    function: Callable[..., Any]
    """A function with the needed facts as arguments, or all with `**facts`; returns a number or a bool. May
    be an `async def`."""
    weight: float = 1.0
    """0: only logged."""
    gate: bool = False
    """Whether it must be non-zero; otherwise the reward is 0 and no other term is computed."""
    average: bool = False
    """Whether the metric of an episode is the mean over its turns, as `mean/reward/<name>`, instead of the
    sum. The reward is the same."""
    _facts: frozenset[str] | None = field(init=False, repr=False, default=None)
    _needed: tuple[str, ...] = field(init=False, repr=False, default=())

    def __post_init__(self) -> None:
        """Find out which facts the function needs.

        Raises:
            InvalidRequestError: The name, the weight or the function is wrong.
        """
        if not _NAME.fullmatch(self.name):
            raise InvalidRequestError(f"{self.name!r} is not a valid term name", field="name")
        if not math.isfinite(self.weight):
            raise InvalidRequestError(
                f"must be a finite number, not {self.weight}", field=f"{self.name}.weight"
            )
        parameters = inspect.signature(self.function).parameters.values()
        if any(p.kind in {p.POSITIONAL_ONLY, p.VAR_POSITIONAL} for p in parameters):
            raise InvalidRequestError(
                f"the term {self.name} has positional-only arguments", hint="name each fact as an argument"
            )
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            object.__setattr__(self, "_facts", frozenset(p.name for p in parameters))
        needed = (p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD)
        object.__setattr__(self, "_needed", tuple(needed))

    @property
    def metric(self) -> str:
        """The name of its metric."""
        return (MEAN if self.average else "") + PREFIX + self.name

    @property
    def needed(self) -> tuple[str, ...]:
        """The facts that the function requires."""
        return self._needed

    def value(self, facts: Mapping[str, Any]) -> float:
        """Compute the term.

        Raises:
            InvalidRewardError: It raised, did not return a finite number, or a fact is missing.
        """
        missing = [name for name in self._needed if name not in facts]
        if missing:
            raise InvalidRewardError(
                f"the term {self.name} needs {', '.join(missing)}, which was not given",
                hint=f"given were: {', '.join(facts) or 'no facts'}",
                field=PREFIX + self.name,
            )
        given = facts if self._facts is None else {k: v for k, v in facts.items() if k in self._facts}
        try:
            value = settled(self.function(**given))
        except InvalidRewardError as error:
            # The term's own error, for example that its judge did not respond.
            raise InvalidRewardError(
                f"the term {self.name} has no value: {error.message}",
                hint=error.hint,
                field=PREFIX + self.name,
            ) from error
        except Exception as error:  # Foreign code: whatever it raised, there is no reward.
            text = "".join(traceback.format_exception(error))[-_MOST_TRACEBACK_CHARACTERS:]
            raise InvalidRewardError(
                f"the term {self.name} raised {type(error).__name__}:\n{text}", field=PREFIX + self.name
            ) from error
        return finite(value, self.name)


class RubricResult(NamedTuple):
    """The reward of an answer. As a pair, it is a valid return value of `SingleTurnEnv.score`."""

    reward: float
    metrics: dict[str, float]
    """The terms' values, unweighted, as `reward/<term>`; of averaged terms as `mean/reward/<term>`."""

    @property
    def terms(self) -> dict[str, float]:
        """The terms' values by name.

        After a gate that was 0, weighted terms are 0, and terms that are only logged are missing.
        """
        return {name.removeprefix(MEAN).removeprefix(PREFIX): value for name, value in self.metrics.items()}


class Rubric:
    """A weighted sum of terms behind gates.

    Example:
        >>> rubric = Rubric()
        >>> @rubric.gate
        ... def is_number(answer):
        ...     return answer.isdigit()
        >>> @rubric.term
        ... def correct(answer, gold):
        ...     return answer == gold
        >>> @rubric.term(weight=0)
        ... def characters(answer):
        ...     return len(answer)
        >>> rubric.score(answer="42", gold="42").reward
        1.0
    """

    def __init__(self, terms: Iterable[Term] = ()) -> None:
        """Create a rubric from terms; add more with `term` and `gate`."""
        self._terms: dict[str, Term] = {}
        for one in terms:
            self.add(one)

    @property
    def terms(self) -> list[Term]:
        """The terms in the order of evaluation: gates first."""
        return sorted(self._terms.values(), key=lambda term: not term.gate)

    def add(self, term: Term) -> None:
        """Add a term.

        Raises:
            InvalidRequestError: Another term has its name.
        """
        if term.name in self._terms:
            raise InvalidRequestError(f"two terms have the name {term.name}", field="terms")
        self._terms[term.name] = term

    def term(
        self,
        function: Function | None = None,
        /,
        *,
        weight: float = 1.0,
        name: str = "",
        average: bool = False,
    ) -> Any:
        """Add a function as a term; for use as a decorator, with or without arguments."""
        if function is None:
            return lambda f: self.term(f, weight=weight, name=name, average=average)
        self.add(Term(name or function.__name__, function, weight, average=average))
        return function

    def gate(self, function: Function | None = None, /, *, weight: float = 0.0, name: str = "") -> Any:
        """Add a gate: a function that must be non-zero, or the reward is 0. Use it as a decorator."""
        if function is None:
            return lambda f: self.gate(f, weight=weight, name=name)
        self.add(Term(name or function.__name__, function, weight, gate=True))
        return function

    def score(self, **facts: Any) -> RubricResult:
        """Compute the reward.

        Args:
            facts: The arguments of the terms; unused facts are ignored.

        Raises:
            InvalidRewardError: A term failed, even one that is only logged; `field` names it.
        """
        if not self._terms:
            raise InvalidRequestError("the rubric has no terms", hint="add some with @rubric.term")
        metrics: dict[str, float] = {}
        reward, holds = 0.0, True
        for term in self.terms:
            if not holds:
                if term.gate or term.weight:
                    metrics[term.metric] = 0.0
                continue
            value = term.value(facts)
            metrics[term.metric] = value
            reward += term.weight * value
            holds = bool(value) or not term.gate
        return RubricResult(finite(reward, "the sum") if holds else 0.0, metrics)


def finite(value: object, name: str) -> float:
    """Return a term's value as a float.

    Raises:
        InvalidRewardError: It is not a finite number.
    """
    try:
        return finite_number(value)
    except ValueError as error:
        raise InvalidRewardError(f"the term {name} returned {error}", field=PREFIX + name) from None
