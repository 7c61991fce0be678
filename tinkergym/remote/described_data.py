"""`tg.datasets.describe`: the data doctor for a model by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.data_report import DataReport
from tinkergym.datasets.doctor import examine
from tinkergym.datasets.marked_tokens import Answers
from tinkergym.datasets.rows import DataSource, source_name
from tinkergym.evaluation.records import read_records
from tinkergym.evaluation.scores import Scores
from tinkergym.remote.model_files import find_bundle
from tinkergym.schema.uploaded_data import DataKind

GROUP_SIZES = (2, 4, 8, 16)
"""For which the share of groups that teach nothing is estimated, up to the episodes per task."""


def describe(
    data: DataSource,
    model: str | Renderer | None = None,
    *,
    kind: DataKind | None = None,
    against: DataSource | Mapping[str, DataSource] | None = None,
    answers: Answers = "all",
    ignore: Sequence[str] = (),
    tasks: bool = False,
    played: str | PathLike[str] | None = None,
) -> DataReport:
    """Read a dataset as training would, and report what it holds and what is wrong with it.

    Per layout one sample with the trained tokens marked, the types and nulls of each column, equal rows,
    lengths against the model's context, missing or doubled beginning tokens, answers without an end, and
    rows that cannot be used. Of tasks, answers that no text can equal.

    Example:
        >>> report = tg.datasets.describe("chats.jsonl", model="nano")
        >>> assert report.ok, report.problems

    Args:
        data: What `client.sft` takes: a file or folder, a list of rows, or a source of `tinkergym.tasks`.
        model: A directory with a tokenizer and a chat template, or a model of the service; None looks only at
            the rows.
        kind: `sft` or `preference`; None finds out by the columns.
        against: Another dataset, or several by name, for rows that are in both: the test split, say.
        answers: As for `client.sft`.
        ignore: As for `client.sft`.
        tasks: Whether the rows are tasks whatever their columns are, as those of an environment.
        played: A file of `tinkergym eval --out` with several episodes per task: from its success rates
            follows the share of groups to expect in which all returns are equal, so that none teaches.

    Raises:
        InvalidRequestError: There is no such file, or no row has a column of `ignore`.
    """
    renderer = Renderer.from_bundle(find_bundle(model)) if isinstance(model, str) else model
    others: Mapping[str, DataSource]
    if against is None or isinstance(against, Mapping):
        others = against or {}
    else:
        others = {source_name(against): against}
    return examine(
        data,
        renderer,
        kind=kind,
        against=others,
        answers=answers,
        ignore=ignore,
        tasks=tasks,
        zero_variance_groups={} if played is None else _zero_variance_groups(Path(played)),
    )


def _zero_variance_groups(file: Path) -> dict[int, float]:
    """Return, by group size, the share of groups in which every episode succeeds or none does."""
    scores = Scores(read_records(file).episodes)
    found = {}
    for size in GROUP_SIZES:
        some, all_ = scores.pass_at(size), scores.pass_hat(size)
        if some is not None and all_ is not None:
            found[size] = all_.mean + 1 - some.mean
    return found
