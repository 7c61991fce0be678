"""Whether a model can read what its job gives it: the variables of the chat template, and the datasets."""

from __future__ import annotations

from datetime import date

from backend.admission.facts import Facts
from backend.admission.request_bounds import refuse_many_images
from backend.store.images import Images
from backend.store.uploads import Uploads
from tinkergym.agent.template_variables import refuse_unknown, writes_date
from tinkergym.errors import InvalidRequestError, TemplateError
from tinkergym.schema.jobs.dataset import DatasetSpec
from tinkergym.schema.jobs.spec import JobSpec
from tinkergym.schema.refusals import Refusal


def template_is_settled(spec: JobSpec, facts: Facts) -> JobSpec | Refusal:
    """Check a job's template variables, and record the template and the date that it writes.

    A resumed job renders the same tokens on another day.

    Raises:
        TemplateError: The template does not use one of the variables.
    """
    bundle = facts.catalog.renderer(spec.model, spec.chat_template)
    used = [bundle]
    for agent in spec.trained_agents:
        own = spec.for_agent(agent)
        used.append(facts.catalog.renderer(own.model, own.chat_template))
        try:
            refuse_unknown(own.template_variables, frozenset(used[-1].template_names))
        except TemplateError as error:
            if own.model != spec.model:
                error.hint = f"{agent!r} has the model {own.model!r}: give it Train(template_variables=...)"
            raise
    day, writes = spec.template_date, any(writes_date(one.chat_template) for one in used)
    if day and not writes:
        dated = "date_string" in bundle.template_names
        hint = "set the variable date_string in template_variables" if dated else "leave it out"
        return Refusal("template_date", "the chat template writes no date", hint, "no_date")
    if not day and writes:
        day = date.today().isoformat()
    settled = bundle.with_settings(spec.template_variables, day)
    return spec.model_copy(update={"template_date": day, "template_sha256": settled.template_sha256})


def datasets_fit(spec: JobSpec, facts: Facts) -> JobSpec | Refusal:
    """Check that a job's data exists, has the right kind, and fits the model.

    Raises:
        NotFoundError: It was never uploaded by this tenant.
        InvalidRequestError: It is of another kind, or longer than the model's context, or has too many
            images.
    """
    if spec.samples_only:
        return _with_steps(spec, facts)
    if not isinstance(spec, DatasetSpec):
        return spec
    config, tenant_id, kind = facts.config, facts.tenant.tenant_id, spec.kind
    bundle = facts.catalog.renderer(spec.model, spec.chat_template)
    uploads = Uploads(config.uploads, tenant_id)
    for field, data_id in spec.datasets.items():
        view = uploads.view(data_id)
        if view.kind != kind:
            raise InvalidRequestError(f"is data for {view.kind!r}, but the job is {kind!r}", field=field)
        if view.longest > bundle.context_length:
            raise InvalidRequestError(
                f"its longest record has {view.longest} tokens, but the context of {spec.model!r} "
                f"{bundle.context_length}",
                hint="shorten or drop such records, or choose a model with a longer context",
                field=field,
            )
        images, most = uploads.images(data_id)
        if images:
            if bundle.images is None:
                raise InvalidRequestError(
                    f"it contains {len(images)} images, but {spec.model!r} supports only text",
                    hint="choose a vision-language model such as nano-vl",
                    field=field,
                )
            refuse_many_images(most, config.limits.prompt_images, field=field)
            Images(config.images, facts.tenant.images).require(images)
    records = uploads.view(spec.data).records
    left = spec.left_of(records)
    if isinstance(left, Refusal):
        return left
    if spec.batch_size > left:
        return Refusal(
            "batch_size",
            f"{spec.batch_size} records per step, but there are only {left} to train on",
            f"set it to {left} or lower",
            "batch_too_large",
        )
    return spec


def _with_steps(spec: JobSpec, facts: Facts) -> JobSpec:
    """Return an inference job with the number of its steps. A prompt that is too long fails its row only.

    Raises:
        NotFoundError: The data was never uploaded by this tenant.
        InvalidRequestError: It is data of another kind.
    """
    view = Uploads(facts.config.uploads, facts.tenant.tenant_id).view(spec.datasets["data"])
    if view.kind != "prompts":
        raise InvalidRequestError(f"is data for {view.kind!r}, not prompts", field="data")
    return spec.with_records(view.records)
