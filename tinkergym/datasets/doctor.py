"""The data doctor: reads a dataset as training would, and reports what it holds and what is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.column_counts import ColumnCounts
from tinkergym.datasets.data_report import DataReport, Lengths, Sample, named_places
from tinkergym.datasets.marked_tokens import Answers
from tinkergym.datasets.padding import has_whole_fraction
from tinkergym.datasets.prepare import Columns, readable, record_of, row_reader
from tinkergym.datasets.rows import DataSource, Row, folder_of, opened, source_name
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.uploaded_data import DataKind, TokenSequence
from tinkergym.tasks.hugging_face import HuggingFaceTasks
from tinkergym.tasks.parquet import ParquetTasks

_MOST_SHOWN = 600
"""Characters of a sample."""
_MOST_FAULTS = 5
_OF_ARROW = frozenset({"Arrow", "Parquet", "a folder of datasets"})
"""Containers that have one type per column."""
_PREFERENCE = frozenset({"chosen", "rejected", "preferred_output", "non_preferred_output"})
_CONVERSATION = frozenset({"messages", "completion", "conversations", "text", "output"})


def examine(
    source: DataSource,
    renderer: Renderer | None,
    *,
    kind: DataKind | None = None,
    tasks: bool = False,
    against: Mapping[str, DataSource] | None = None,
    answers: Answers = "all",
    ignore: Sequence[str] = (),
    zero_variance_groups: Mapping[int, float] | None = None,
) -> DataReport:
    """Read all of a dataset and report what it holds.

    Args:
        source: A file or folder, a list of rows, or a task source.
        renderer: The renderer of the model; None to look only at the rows.
        kind: Conversations or comparisons; None finds out by the columns, or takes the rows as tasks.
        tasks: Whether the rows are tasks whatever their columns are, as those of an environment.
        against: Other datasets by name, such as the test split, for rows that are in both.
        answers: Which answers of a conversation are trained on.
        ignore: Columns to skip.
        zero_variance_groups: By group size, the share of groups to expect that teach nothing.

    Raises:
        InvalidRequestError: There is no such file, or no row has a column of `ignore`.
    """
    container, given = opened(source, field="data")
    counts, seen, columns = ColumnCounts(ignore), list[Row](), Columns(ignore)
    for row in given:
        seen.append(row)
        columns.without(row)
        if not row.fault:
            counts.add(row.where, row.value)
    if unseen := columns.unseen:
        raise InvalidRequestError(f"no row has the column {unseen!r}", hint="leave it out", field="ignore")
    found = kind or (None if tasks else _kind_of(counts.types))
    rendered = _Rendered(renderer)
    faults = [f"{row.where}: {fault}" for row in seen if (fault := row.fault or _not_an_object(row.value))]
    layouts: Counter[str] = Counter()
    if found is not None:
        read = row_reader(found, renderer, answers) if renderer is not None else None
        rows = readable(seen, found, columns=columns, folder=folder_of(source))
        faults = list(rendered.faults_of(rows, read, layouts))
    shared = {
        name: sum(one in counts.contents for one in _contents(other, ignore))
        for name, other in (against or {}).items()
    }
    never_equal = counts.never_equal if found is None else {}
    return DataReport(
        name=source_name(source),
        container=container,
        kind=found or "tasks",
        rows=len(seen),
        layouts=dict(layouts),
        columns=counts.columns,
        faults=tuple(faults),
        equal_rows=len(counts.equal),
        shared_rows=shared,
        never_equal={name: len(places) for name, places in never_equal.items()},
        lengths=rendered.lengths,
        trained_tokens=rendered.trained,
        without_beginning=len(rendered.without_beginning),
        doubled_beginning=len(rendered.doubled_beginning),
        without_end=len(rendered.without_end),
        samples=tuple(rendered.samples.values()),
        zero_variance_groups=zero_variance_groups or {},
        notes=tuple(_notes(source, container, rendered.whole_fractions)),
        problems=(*_problems(counts, faults, shared, never_equal), *rendered.problems),
    )


def _not_an_object(value: Any) -> str:
    return "" if isinstance(value, Mapping) else f"row: must be a JSON object, not {type(value).__name__}"


def _kind_of(columns: Mapping[str, Any]) -> DataKind | None:
    labeled = {"completion", "label"} <= columns.keys() or "kto_tag" in columns
    if (labeled or columns.keys() & _PREFERENCE) and not columns.keys() & {"answer", "question"}:
        return "preference"
    return "sft" if columns.keys() & _CONVERSATION else None


def _contents(source: DataSource, ignore: Sequence[str]) -> Iterator[bytes]:
    other = ColumnCounts(ignore)
    for row in opened(source, field="against")[1]:
        if not row.fault:
            other.add(row.where, row.value)
    yield from other.contents


def _notes(source: DataSource, container: str, whole_fractions: list[str]) -> Iterator[str]:
    if whole_fractions and (container in _OF_ARROW or isinstance(source, ParquetTasks | HuggingFaceTasks)):
        yield (
            f"{named_places(whole_fractions)} has numbers such as 1.0 in calls or tools: Arrow has one type "
            "per column, so 1 next to 2.5 becomes 1.0; if 1 was meant, store tools and arguments as JSON text"
        )


def _problems(
    counts: ColumnCounts,
    faults: Sequence[str],
    shared: Mapping[str, int],
    never_equal: Mapping[str, list[str]],
) -> Iterator[str]:
    if not counts.rows and not faults:
        yield "it has no rows"
    if faults:
        more = f"; and {len(faults) - _MOST_FAULTS} more" if len(faults) > _MOST_FAULTS else ""
        yield f"{len(faults)} rows cannot be used: {'; '.join(faults[:_MOST_FAULTS])}{more}"
    if counts.equal:
        places = [f"{where} repeats {first}" for where, first in counts.equal]
        yield f"{len(counts.equal)} rows repeat another: {named_places(places)}"
    for name, number in shared.items():
        if number:
            yield f"{number} rows are also in {name}"
    for name, places in never_equal.items():
        where = named_places(places)
        yield f"{name} is a number in {where}, which no answer equals, as answers are text: write it as text"


@dataclass
class _Rendered:
    """Collects what the rows are as tokens."""

    renderer: Renderer | None
    sizes: list[int] = field(default_factory=list)
    trained: int = 0
    over: list[str] = field(default_factory=list)
    without_beginning: list[str] = field(default_factory=list)
    doubled_beginning: list[str] = field(default_factory=list)
    without_end: list[str] = field(default_factory=list)
    samples: dict[str, Sample] = field(default_factory=dict)

    whole_fractions: list[str] = field(default_factory=list)
    """Rows with a number such as 1.0, which Arrow also makes of 1."""

    def faults_of(self, rows: Iterable[Row], read: Any, layouts: Counter[str]) -> Iterator[str]:
        """Yield what is wrong with each row; collect the others."""
        for row in rows:
            if row.fault or read is None:
                if row.fault:
                    yield f"{row.where}: {row.fault}"
                else:
                    layouts[row.layout] += 1
                continue
            one = record_of(row, read)
            if one.fault and not one.longest:
                yield f"{row.where}: {one.fault}"
                continue
            layouts[row.layout] += 1
            if has_whole_fraction(row.value):
                self.whole_fractions.append(row.where)
            self._add(row, one.sequences, one.longest)

    def _add(self, row: Row, sequences: Sequence[TokenSequence], longest: int) -> None:
        assert self.renderer is not None
        self.sizes += [len(sequence.token_ids) for sequence in sequences] or [longest]
        if longest > self.renderer.context_length:
            self.over.append(row.where)
        begin = _beginning(self.renderer)
        for sequence in sequences:
            self.trained += sequence.trained_tokens
            first, second = sequence.token_ids[:2]
            if begin is not None and first != begin:
                self.without_beginning.append(row.where)
            if begin is not None and first == second == begin:
                self.doubled_beginning.append(row.where)
            ends = [sequence.token_ids[stop - 1] for _, stop in sequence.trained]
            if row.layout != "text" and any(end not in self.renderer.stop_ids for end in ends):
                self.without_end.append(row.where)
        if sequences and row.layout not in self.samples:
            text = marked(self.renderer, sequences[0])
            self.samples[row.layout] = Sample(row.layout, row.where, text)

    @property
    def lengths(self) -> Lengths | None:
        """The lengths of all sequences; None if there are none."""
        if not self.sizes or self.renderer is None:
            return None
        ordered = sorted(self.sizes)
        p95 = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
        context = self.renderer.context_length
        return Lengths(
            ordered[0],
            int(median(ordered)),
            p95,
            ordered[-1],
            context,
            sum(size > context for size in ordered),
        )

    @property
    def problems(self) -> Iterator[str]:
        """What is wrong with the tokens."""
        told = {
            "is longer than the model's context": self.over,
            "lacks the token that begins the model's texts": self.without_beginning,
            "begins with that token twice": self.doubled_beginning,
            "has an answer without a token that ends it": self.without_end,
        }
        yield from (f"{named_places(places)} {what}" for what, places in told.items() if places)


def _beginning(renderer: Renderer) -> int | None:
    """Return the token that begins the model's texts; None if there is none."""
    one, other = (renderer.document(text)[:1] for text in ("a", "7"))
    return one[0] if one and one == other else None


def marked(renderer: Renderer, sequence: TokenSequence) -> str:
    """Return a sequence as text, with what is trained on between `⟦` and `⟧`."""
    parts, place = [], 0
    for start, stop in sequence.trained:
        parts += [renderer.decode(sequence.token_ids[place:start]), "⟦"]
        parts += [renderer.decode(sequence.token_ids[start:stop]), "⟧"]
        place = stop
    text = "".join([*parts, renderer.decode(sequence.token_ids[place:])])
    if len(text) <= _MOST_SHOWN:
        return text
    half = _MOST_SHOWN // 2
    return f"{text[:half]} ... {text[-half:]}"
