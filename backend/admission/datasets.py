"""Checks of a job that trains on a dataset, before it is accepted."""

from __future__ import annotations

from backend.admission.image_bounds import refuse_many_images
from backend.admission.protocols import ModelCatalog
from backend.store.blobs import Blobs
from backend.store.images import Images
from backend.store.store import TenantStore
from backend.store.uploads import Uploads
from tinkergym.errors import InvalidDataError, InvalidRequestError
from tinkergym.schema.checks import nothing_left
from tinkergym.schema.data import DataKind
from tinkergym.schema.jobs.dataset import DatasetSpec, SFTSpec


def check(
    catalog: ModelCatalog,
    uploaded: Blobs,
    images_sent: Blobs,
    tenant: TenantStore,
    spec: DatasetSpec,
    *,
    most_images: int,
) -> None:
    """Check that the data exists, has the right kind, and fits the model.

    `most_images` is the limit for one sequence.

    Raises:
        NotFoundError: It was never uploaded by this tenant.
        InvalidDataError: It is of another kind, or longer than the model's context.
        InvalidRequestError: A batch is larger than the data, or a sequence has too many images.
    """
    bundle = catalog.renderer(spec.model, spec.chat_template)
    uploads = Uploads(uploaded, tenant.tenant_id)
    kind: DataKind = "sft" if isinstance(spec, SFTSpec) else "preference"
    for field, data_id in (("data", spec.data), ("eval_data", spec.eval_data)):
        if data_id is None:
            continue
        view = uploads.view(data_id)
        if view.kind != kind:
            raise InvalidDataError(f"is data for {view.kind!r}, but the job is {kind!r}", field=field)
        if view.longest > bundle.context_length:
            raise InvalidDataError(
                f"its longest record has {view.longest} tokens, but the context of {spec.model!r} "
                f"{bundle.context_length}",
                hint="shorten or drop such records, or choose a model with a longer context",
                field=field,
            )
        images, most = uploads.images(data_id)
        if images:
            if bundle.images is None:
                raise InvalidDataError(
                    f"it contains {len(images)} images, but {spec.model!r} supports only text",
                    hint="choose a vision-language model such as nano-vl",
                    field=field,
                )
            refuse_many_images(most, most_images, field=field)
            Images(images_sent, tenant.tenant_id).require(images)
    records = uploads.view(spec.data).records
    left = records - spec.held_out_records(records)
    if not left:
        raise nothing_left(spec, records)
    if spec.batch_size > left:
        raise InvalidRequestError(
            f"{spec.batch_size} records per step, but there are only {left} to train on",
            hint=f"set it to {left} or lower",
            field="batch_size",
        )
