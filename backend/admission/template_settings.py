"""Checks of how a job's chat template is rendered, before it is accepted."""

from __future__ import annotations

from datetime import date

from backend.admission.facts import Facts
from tinkergym.agent.template_variables import refuse_unknown, writes_date
from tinkergym.errors import TemplateError
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
