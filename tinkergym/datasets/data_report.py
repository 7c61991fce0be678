"""The data doctor's report: what a data file or a task source holds, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Sample:
    """One row as the model sees it."""

    layout: str
    where: str
    text: str
    """The whole text; what is trained on stands between `⟦` and `⟧`."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens per sequence."""

    shortest: int
    median: int
    p95: int
    longest: int
    context: int
    """The model's context."""
    over_context: int
    """Sequences that do not fit into it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReport:
    """What a dataset holds. `print(report)` shows all of it, `report.problems` what should be fixed."""

    name: str
    container: str
    kind: str
    """`sft`, `preference`, or `tasks` for rows that no layout fits."""
    rows: int
    layouts: Mapping[str, int] = field(default_factory=dict)
    columns: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By column, how many rows have which type, `null` and `absent` included."""
    faults: tuple[str, ...] = ()
    """Rows that cannot be trained on, with place and reason."""
    equal_rows: int = 0
    """Rows that repeat another."""
    shared_rows: Mapping[str, int] = field(default_factory=dict)
    """Rows that are also in another dataset, by its name."""
    never_equal: Mapping[str, int] = field(default_factory=dict)
    """Rows whose answer is a number, which no text equals, by column."""
    lengths: Lengths | None = None
    trained_tokens: int = 0
    without_beginning: int = 0
    """Sequences without the token that begins the model's texts."""
    doubled_beginning: int = 0
    without_end: int = 0
    """Answers that do not end with a token at which the model stops."""
    samples: tuple[Sample, ...] = ()
    zero_variance_groups: Mapping[int, float] = field(default_factory=dict)
    """By group size, the share of groups to expect in which all returns are equal, so that none teaches."""
    notes: tuple[str, ...] = ()
    """What may be as it was meant, each in a sentence."""
    problems: tuple[str, ...] = ()
    """What should be fixed, each in a sentence."""

    @property
    def ok(self) -> bool:
        """Whether nothing should be fixed."""
        return not self.problems

    def summary(self) -> dict[str, Any]:
        """Return everything as one JSON object."""
        return {
            "name": self.name,
            "container": self.container,
            "kind": self.kind,
            "rows": self.rows,
            "layouts": dict(self.layouts),
            "columns": {name: dict(kinds) for name, kinds in self.columns.items()},
            "faults": list(self.faults),
            "equal_rows": self.equal_rows,
            "shared_rows": dict(self.shared_rows),
            "never_equal": dict(self.never_equal),
            "lengths": None if self.lengths is None else _fields(self.lengths),
            "trained_tokens": self.trained_tokens,
            "without_beginning": self.without_beginning,
            "doubled_beginning": self.doubled_beginning,
            "without_end": self.without_end,
            "samples": [_fields(sample) for sample in self.samples],
            "zero_variance_groups": {str(size): share for size, share in self.zero_variance_groups.items()},
            "notes": list(self.notes),
            "problems": list(self.problems),
        }

    def __str__(self) -> str:
        read = ", ".join(f"{count} rows as {name}" for name, count in self.layouts.items()) or "as tasks"
        lines = [f"{self.name}: {self.container}, {self.rows} rows; {read}"]
        lines += [f"  {name}: {_counted(kinds)}" for name, kinds in self.columns.items()]
        if one := self.lengths:
            lines.append(
                f"  tokens: {one.shortest} to {one.longest}, median {one.median}, 95 % up to {one.p95}; "
                f"context {one.context}; {self.trained_tokens} trained"
            )
        if self.zero_variance_groups:
            shares = ", ".join(f"{share:.0%} of {size}" for size, share in self.zero_variance_groups.items())
            lines.append(f"  zero-variance groups to expect: {shares}")
        for sample in self.samples:
            lines += [f"  {sample.where}, {sample.layout}; trained is what stands between ⟦ and ⟧:"]
            lines += [f"    {line}" for line in sample.text.splitlines()]
        lines += [f"  note: {note}" for note in self.notes]
        lines += [f"  problem: {problem}" for problem in self.problems]
        return "\n".join([*lines, "  ok" if self.ok else f"  {len(self.problems)} problems"])


def named_places(places: list[str]) -> str:
    """Return the first places, and how many more there are."""
    more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    return ", ".join(places[:_SHOWN]) + more


def _counted(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}
