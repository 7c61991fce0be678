"""Batch inference from this process: a dataset's rows, sampled by the service, into a file."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.prompts import PromptRow, prompt_rows
from tinkergym.datasets.rows import DataSource, content_sha256, source_name
from tinkergym.display.progress import episodes_shown
from tinkergym.errors import InvalidRequestError, PromptTooLongError
from tinkergym.inference.in_order import Answer, InOrder
from tinkergym.inference.out_file import OutFile
from tinkergym.inference.parquet_file import require_parquet
from tinkergym.inference.results import RESERVED, completed_line, failed_line, fault_of
from tinkergym.inference.sampling_plan import SamplingPlan
from tinkergym.remote.ask import SAMPLE_PATH
from tinkergym.remote.http_sampler import HttpSampler
from tinkergym.remote.transport import Connection
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.events import ErrorView
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.sampling import Completion, SampleRequest

IN_FLIGHT = 512
"""Requests at a time: an engine computes up to 256 of them together, and the others wait there already."""
_AHEAD = 4
"""Open rows per request in flight, so that one long completion does not stop the others."""
CHECKED_ROWS = 20
"""If none of so many first rows can be read, the dataset is not what was meant."""
_PATIENCE_SECONDS = 600.0
"""How long the run waits for a service that does not respond."""


class AnyPolicy(Protocol):
    """What is sampled: a `Policy`, whose module imports this one."""

    name: str
    model: str
    chat_template: str
    template_variables: dict[str, Any]

    def renderer_on(self, day: str | None = None) -> tuple[Renderer, str]:
        """Return a renderer for prompts that may be rendered on several days, and the date that it writes."""
        ...

    @property
    def connection(self) -> Connection:
        """The connection to its service."""
        ...

    def settled_version(self) -> int | None:
        """Return the version to use from now on; None for a model."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """What `Policy.generate` was given besides the decoding."""

    n: int = 1
    resume: bool = False
    tools: Sequence[Mapping[str, Any]] = ()
    keep: Sequence[str] = ()
    ignore: Sequence[str] = ()
    token_ids: bool = False
    logprobs: bool = False
    in_flight: int = IN_FLIGHT
    progress: bool | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidRequestError: One is out of range.
        """
        for name, least, most in (("n", 1, 1024), ("in_flight", 1, 4096)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise InvalidRequestError(
                    f"must be a number from {least} to {most}, not {value!r}", field=name
                )
        if taken := RESERVED.intersection(self.keep):
            raise InvalidRequestError(
                f"the results have a {min(taken)!r} of their own", hint="rename the column", field="keep"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What a run of `Policy.generate` did, with earlier parts of it."""

    path: Path
    completions: int
    """Lines of the file, with those of rows that failed."""
    errors: int
    prompt_tokens: int
    completion_tokens: int
    continued_from: int
    """Lines that were there before."""
    seconds: float
    policy: str
    """With its version, such as `job-ID@40`."""


def generate(
    policy: AnyPolicy, data: DataSource, out: str | Path, decoding: Decoding, options: GenerateOptions
) -> Generated:
    """Sample a completion, or `n`, of each row, and write them to `out`; see `Policy.generate`."""
    started = time.monotonic()
    path = Path(out)
    if path.suffix == ".parquet":
        require_parquet()
    version = policy.settled_version()
    begun = OutFile.begun_with(path) if options.resume else {}
    # A file that is continued keeps the day of its first prompts, or templates with a date would differ.
    renderer, day = policy.renderer_on(begun.get("template_date"))
    renderer = renderer.with_tools(options.tools)
    read = partial(prompt_rows, data, renderer, ignore=options.ignore, keep=options.keep)
    check_first_rows(list(islice(read(), CHECKED_ROWS)), source_name(data), options)
    settings = _settings(policy, version, data, decoding, options) | {"template_date": day}
    plan = SamplingPlan(
        run_id=f"generate-{uuid.uuid4().hex[:12]}",
        policy=policy.name,
        policy_version=version,
        decoding=decoding,
        n=options.n,
        stop_ids=renderer.stop_ids,
        context_length=renderer.context_length,
    )
    with OutFile(path, settings, n=options.n, resume=options.resume) as file:
        before = file.done
        # Whole rows that are done, and completions of the next one.
        skipped, first = divmod(before, options.n)
        if not file.finished:
            shown = episodes_shown(
                _total(data, options), done=before, what="completions", progress=options.progress
            )
            with shown as more:
                for lines in _results(policy, planned(read(start=skipped), plan, first), plan, options):
                    file.write(lines)
                    more(len(lines))
            file.finish()
        return Generated(
            path=path,
            completions=file.done,
            errors=file.errors,
            prompt_tokens=file.prompt_tokens,
            completion_tokens=file.completion_tokens,
            continued_from=before,
            seconds=time.monotonic() - started,
            policy=policy.name if version is None else str(PolicyRef.parse(policy.name).at(version)),
        )


def _settings(
    policy: AnyPolicy, version: int | None, data: DataSource, decoding: Decoding, options: GenerateOptions
) -> dict[str, Any]:
    """Return what determines the results. A run is continued with the same settings only."""
    return {
        "data": source_name(data),
        "data_sha256": content_sha256(data),
        "policy": policy.name,
        "policy_version": version,
        "model": policy.model,
        "chat_template": policy.chat_template and hashlib.sha256(policy.chat_template.encode()).hexdigest(),
        "template_variables": policy.template_variables,
        **decoding.model_dump(mode="json"),
        **{name: getattr(options, name) for name in ("n", "token_ids", "logprobs")},
        **{name: list(getattr(options, name)) for name in ("tools", "keep", "ignore")},
    }


def _total(data: DataSource, options: GenerateOptions) -> int | None:
    """Return how many completions there will be, if that is known without reading rows."""
    if not isinstance(data, str | PathLike):
        return len(data) * options.n
    path, lines = Path(data), 0
    if not path.is_file():
        return None
    with path.open("rb") as file:
        if file.read(1) != b"{":
            return None
        while block := file.read(1 << 20):
            lines += block.count(b"\n")
    return lines * options.n


def _results(
    policy: AnyPolicy,
    work: Iterator[tuple[_Work, list[SampleRequest]]],
    plan: SamplingPlan,
    options: GenerateOptions,
) -> Iterator[list[dict[str, Any]]]:
    """Yield the lines of each row."""
    sampler = HttpSampler(policy.connection, SAMPLE_PATH, patience_seconds=_PATIENCE_SECONDS)
    with closing(sampler):
        run = InOrder[_Work](
            sampler, in_flight=options.in_flight, ahead=max(2, _AHEAD * options.in_flight // options.n)
        )
        for done, answers in run.run(work):
            yield _lines(done, answers, plan, options)


@dataclass(frozen=True, slots=True)
class _Work:
    row: PromptRow
    first: int
    """The first of its completions that is missing."""
    fault: ErrorView | None = None


def planned(
    rows: Iterable[PromptRow], plan: SamplingPlan, first: int
) -> Iterator[tuple[_Work, list[SampleRequest]]]:
    """Yield rows with their requests; the first row lacks its completions from number `first` on."""
    for row in rows:
        if row.fault:
            yield _Work(row, first, ErrorView(type="InvalidRequestError", message=row.fault)), []
        else:
            try:
                requests = plan.requests(row.number, row.token_ids, row.images, first=first)
            except PromptTooLongError as error:
                yield _Work(row, first, ErrorView.model_validate(error.to_wire())), []
            else:
                yield _Work(row, first), requests
        first = 0


def _lines(
    work: _Work, answers: Sequence[Answer], plan: SamplingPlan, options: GenerateOptions
) -> list[dict[str, Any]]:
    """Return the lines of a row.

    Raises:
        ServiceUnavailableError: The service did not respond for too long.
        TinkerGymError: It refuses the policy, the key or a setting.
    """
    if work.fault:
        return [failed_line(work.row, sample, work.fault) for sample in range(work.first, plan.n)]
    lines: list[dict[str, Any]] = []
    for sample, answer in enumerate(answers, start=work.first):
        if isinstance(answer, Completion):
            lines.append(
                completed_line(
                    work.row, sample, answer, token_ids=options.token_ids, logprobs=options.logprobs
                )
            )
        else:
            lines.append(failed_line(work.row, sample, fault_of(answer)))
    return lines


def check_first_rows(first: Sequence[PromptRow], name: str, options: GenerateOptions) -> None:
    """Refuse a dataset whose first rows cannot be used, before anything is written.

    Raises:
        InvalidRequestError: There are none, none of them can be read, or none has a column to keep.
    """
    if not first:
        raise InvalidRequestError(f"{name}: has no rows", field="data")
    if all(row.fault for row in first):
        raise InvalidRequestError(f"{name}, {first[0].where}: {first[0].fault}", field="data")
    for column in options.keep:
        if not any(column in row.kept for row in first):
            raise InvalidRequestError(
                f"{name}: none of the first {len(first)} rows has the column {column!r}", field="keep"
            )
