"""Datasets from a file to a job: rendered here, uploaded in chunks, referenced in the settings."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from tinkergym.agent.renderer import Renderer
from tinkergym.agent.template_variables import writes_date
from tinkergym.datasets.marked_tokens import Answers
from tinkergym.datasets.prepare import Overlong, PreparedData, prepare
from tinkergym.datasets.rows import DataSource, source_name
from tinkergym.errors import InvalidRequestError, ServiceUnavailableError
from tinkergym.remote.api import Api
from tinkergym.remote.image_upload import ImageUpload
from tinkergym.remote.user_files import with_template_read
from tinkergym.schema.jobs.dataset import PreferenceSpec, SFTSpec
from tinkergym.schema.jobs.parts import LoRA
from tinkergym.schema.parsing import parse, refuse_recorded
from tinkergym.schema.refusals import Refusal
from tinkergym.schema.uploaded_data import DataKind, DataView

_log = logging.getLogger(__name__)

_BATCH_SIZE = 32
_KINDS: dict[DataKind, type[SFTSpec | PreferenceSpec]] = {"sft": SFTSpec, "preference": PreferenceSpec}
_ARGUMENTS: dict[DataKind, tuple[str, ...]] = {
    "sft": ("epochs", "on_overlong", "answers", "ignore"),
    "preference": ("epochs", "on_overlong", "ignore"),
}
"""Arguments of a script besides the job's settings."""
_ROUNDS = 3
"""How often chunks that the service says it lacks are sent before giving up."""


def upload(api: Api, data: PreparedData) -> DataView:
    """Upload what the service does not have yet. Repeating the call uploads nothing.

    Raises:
        PayloadTooLargeError: The tenant's share of the service's disk is used up.
        StorageFullError: The service's disk is full.
    """
    ImageUpload(api.connection, "/v1/images").send(data.images, files=data.images)
    for _ in range(_ROUNDS):
        view = api.complete_data(data.manifest)
        if not view.missing:
            return view
        for name in view.missing:
            api.put_chunk(name, data.bodies[name])
    raise ServiceUnavailableError(
        "the service does not keep the data it receives", hint="see logs/gateway.log in its data_dir"
    )


def written_job(
    api: Api,
    kind: DataKind,
    data: DataSource,
    *,
    model: str,
    eval_data: DataSource | None,
    steps: int | None,
    epochs: float | None,
    on_overlong: Overlong,
    answers: Answers,
    ignore: Sequence[str] = (),
    settings: Mapping[str, Any],
) -> SFTSpec | PreferenceSpec:
    """Check everything, upload the data, and return the complete specification of the job.

    Raises:
        InvalidRequestError: A row cannot be trained on, or a setting is invalid; nothing was sent.
    """
    refuse_recorded(settings)
    _refuse(steps, epochs, on_overlong, answers)
    ignore = [ignore] if isinstance(ignore, str) else list(ignore)
    given = {key: value for key, value in with_template_read(settings).items() if value is not None}
    # Invalid settings are found before anything is read or rendered. The placeholder is not a dataset's name.
    draft = {"adapter": LoRA(), **given, "kind": kind, "model": model, "data": "0" * 64, "steps": steps or 1}
    if eval_data is not None:
        draft["eval_data"] = "0" * 64
    checked = parse(_KINDS[kind], draft, _ARGUMENTS[kind])

    bundle = api.renderer_of(checked)
    if writes_date(bundle.chat_template) and not bundle.template_date:
        # The rows are rendered here, and all that the job renders later must have the same date.
        draft["template_date"] = date.today().isoformat()
        bundle = bundle.with_settings(bundle.template_variables, draft["template_date"])
    renderer = Renderer.from_bundle(bundle)
    ready = prepare(data, renderer, kind=kind, answers=answers, on_overlong=on_overlong, ignore=ignore)
    _log_reading("data", data, ready, renderer)
    left = checked.left_of(ready.records)
    if isinstance(left, Refusal):
        raise left.error()
    measured = None
    if eval_data is not None:
        measured = prepare(
            eval_data,
            renderer,
            kind=kind,
            answers=answers,
            on_overlong=on_overlong,
            ignore=ignore,
            field="eval_data",
        )
        _log_reading("eval_data", eval_data, measured, renderer)
        draft["eval_data"] = upload(api, measured).data_id
    draft["data"] = upload(api, ready).data_id
    batch_size = given.get("batch_size", max(1, min(_BATCH_SIZE, left)))
    if steps is None:
        steps = max(1, math.ceil((1.0 if epochs is None else epochs) * left / batch_size))
    return parse(_KINDS[kind], {**draft, "batch_size": batch_size, "steps": steps})


def _log_reading(field: str, data: DataSource, ready: PreparedData, renderer: Renderer) -> None:
    _log.info("%s: %s is read as %s", field, source_name(data), ready.taken_as)
    if ready.dropped:
        _log.warning(
            "%s: dropped %d of %d rows, which are longer than the model's context of %d tokens",
            field,
            ready.dropped,
            ready.dropped + ready.records,
            renderer.context_length,
        )


def _refuse(steps: int | None, epochs: float | None, on_overlong: str, answers: str) -> None:
    if steps is not None and epochs is not None:
        raise InvalidRequestError("cannot be combined with steps", hint="give one of them", field="epochs")
    is_number = isinstance(epochs, int | float) and not isinstance(epochs, bool)
    if epochs is not None and not (is_number and 0 < epochs < math.inf):
        raise InvalidRequestError(
            f"must be a number above 0, not {epochs!r}", hint="1 is once over the data", field="epochs"
        )
    for field, value, choices in (
        ("on_overlong", on_overlong, ("refuse", "drop")),
        ("answers", answers, ("all", "last")),
    ):
        if value not in choices:
            raise InvalidRequestError(f"must be {choices[0]!r} or {choices[1]!r}, not {value!r}", field=field)
