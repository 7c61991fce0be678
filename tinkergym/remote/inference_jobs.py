"""Batch inference in the service: prompts are rendered here, and completions decoded here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.prepare import ChunkCollector, PreparedData
from tinkergym.datasets.prompts import PromptRow, prompt_rows
from tinkergym.datasets.rows import DataSource, source_name
from tinkergym.errors import InvalidRequestError
from tinkergym.inference.out_file import OutFile
from tinkergym.inference.results import stored_lines
from tinkergym.remote.api import Api
from tinkergym.remote.dataset_upload import upload
from tinkergym.remote.generating import CHECKED_ROWS, GenerateOptions, check_first_rows
from tinkergym.remote.policy import Policy
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.jobs.inference import InferenceSpec
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.parsing import parse
from tinkergym.schema.sampling import RowResult
from tinkergym.schema.uploaded_data import PromptNote, TokenSequence

_MOST_FAULT = 10_000


def inference_job(
    api: Api,
    policy: Policy,
    data: DataSource,
    options: GenerateOptions,
    settings: Mapping[str, Any],
) -> InferenceSpec:
    """Render and upload the prompts, and return the specification of the job.

    Raises:
        InvalidRequestError: The data cannot be read, or a setting is invalid; nothing was sent.
    """
    renderer, day = policy.renderer_on()
    renderer = renderer.with_tools(options.tools)
    draft: dict[str, Any] = {
        "kind": "inference",
        "model": policy.model,
        "policy": policy.reference if PolicyRef.is_meant(policy.name) else "",
        "chat_template": policy.chat_template,
        "template_variables": policy.template_variables,
        "template_date": day,
        "data": "0" * 64,
        "n": options.n,
        "logprobs": options.logprobs,
        "stop_ids": list(renderer.stop_ids),
        **settings,
    }
    parse(InferenceSpec, draft)  # Before anything is rendered; the placeholder is not a dataset's name.
    rows = prompt_rows(data, renderer, ignore=options.ignore, keep=options.keep)
    first = list(islice(rows, CHECKED_ROWS))
    check_first_rows(first, source_name(data), options)
    prepared = prepared_prompts(chain(first, rows), options.tools)
    draft["data"] = upload(api, prepared).data_id
    return parse(InferenceSpec, draft)


def prepared_prompts(rows: Iterable[PromptRow], tools: Sequence[Mapping[str, Any]] = ()) -> PreparedData:
    """Return prompts for upload, each with a note of what belongs to it.

    Args:
        rows: The prompts.
        tools: The functions of rows that have none of their own.
    """
    collected = ChunkCollector("prompts")
    for row in rows:
        offered = [dict(tool) for tool in row.tools or tools]
        note = PromptNote(where=row.where, fault=row.fault[:_MOST_FAULT], kept=dict(row.kept), tools=offered)
        prompt = (
            TokenSequence(token_ids=list(row.token_ids), images=list(row.images)) if not row.fault else None
        )
        collected.add([] if prompt is None else [prompt], note)
        collected.images |= row.files
    return collected.finished()


def results(api: Api, view: JobView, *, token_ids: bool, first_step: int = 1) -> Iterator[dict[str, Any]]:
    """Yield the lines of an inference job so far, from a step on."""
    if not view.spec.samples_only:
        raise _of_another_kind(view)
    spec = view.spec
    renderer = Renderer.from_bundle(spec.rendered(api.renderer(spec.model, spec.chat_template)))
    for line in api.row_results(view.job_id, first_step=first_step):
        yield from stored_lines(RowResult.model_validate_json(line), renderer, token_ids=token_ids)


def _of_another_kind(view: JobView) -> InvalidRequestError:
    return InvalidRequestError(
        f"{view.job_id} is of kind {view.spec.kind!r}, which has no results",
        hint="those of kind 'inference' have some; see client.infer",
        field="job_id",
    )


def write_results(api: Api, view: JobView, out: str | Path, *, token_ids: bool) -> OutFile:
    """Write the lines that `out` does not have yet; a finished job's file is finished.

    Raises:
        InvalidRequestError: `out` is a file of something else, or cannot be written.
        ConflictError: It has the results of another job.
    """
    spec = view.spec
    if not spec.samples_only:
        raise _of_another_kind(view)
    n = spec.completions_per_record
    with OutFile(Path(out), {"job": view.job_id, "token_ids": token_ids}, n=n, resume=True) as file:
        if file.finished:
            return file
        step, there = divmod(file.done, n * spec.records_per_step)
        lines = islice(results(api, view, token_ids=token_ids, first_step=step + 1), there, None)
        for portion in iter(partial(_some, lines), []):
            file.write(portion)
        # Fewer than that are not all: a step's file is missing in the service.
        if view.state.final and file.done > (view.step - 1) * n * spec.records_per_step:
            file.finish()
        return file


def _some(lines: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return list(islice(lines, 256))
