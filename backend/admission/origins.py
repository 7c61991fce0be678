"""Resolve and check what a job builds on: its model, its initial policy and its teacher."""

from __future__ import annotations

import json
import shlex
from typing import Any

from pydantic import JsonValue

from backend.admission.facts import Facts, ModelCatalog
from backend.admission.frozen_opponents import with_definite_opponents
from backend.admission.models_together import no_room_for_teacher
from backend.store.policies import PolicyRecord
from backend.store.store import TenantStore
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.jobs.distillation import DistillationSpec
from tinkergym.schema.jobs.parts import Adapter, FullParameters, LoRA
from tinkergym.schema.jobs.seats import Train
from tinkergym.schema.jobs.spec import JobSpec


def origins_are_definite(spec: JobSpec, facts: Facts) -> JobSpec:
    """Return the job with its model by its canonical name, and the versions of the policies it uses.

    Raises:
        NotFoundError: Such a policy is not this tenant's, or there is no checkpoint of that version.
        InvalidRequestError: Its model or adapter differs from the job's; or the teacher's tokenizer differs
            from the student's, it cannot score everything that the student may write, or no room was planned
            for it.
    """
    catalog, tenant = facts.catalog, facts.tenant
    # A pool serves one name: a folder written in several ways would be loaded several times.
    changes: dict[str, Any] = {"model": catalog.known_as(spec.model)}
    if spec.seats:
        changes["agents"] = {
            agent: seat.model_copy(update={"model": _other_model(catalog, spec.model, seat)})
            if isinstance(seat, Train)
            else seat
            for agent, seat in spec.seats.items()
        }
    spec = spec.model_copy(update=changes)
    changes = {}
    if spec.seats:
        changes |= _beginnings(tenant, spec)
    elif spec.initial_policy:
        definite, begun_with = _policy(tenant, spec.initial_policy, "initial_policy")
        _refuse_other_shape(spec, definite, begun_with)
        changes["initial_policy"] = str(definite)
    if spec.sampled_policy:
        changes["policy"] = _sampled(tenant, spec)
    if isinstance(spec, DistillationSpec):
        changes["teacher"] = _teacher(facts, spec)
    return with_definite_opponents(tenant, spec.model_copy(update=changes))


def _other_model(catalog: ModelCatalog, model: str, seat: Train) -> str | None:
    """Return a canonical name for a seat's model; None if it is the job's, under any name."""
    named = None if seat.model is None else catalog.known_as(seat.model)
    return None if named == catalog.known_as(model) else named


def _beginnings(tenant: TenantStore, spec: JobSpec) -> dict[str, Any]:
    """Return the seats with the version that each policy starts from."""
    agents, begun = dict(spec.seats), {agent: spec.for_agent(agent) for agent in spec.trained_agents}
    beginnings = {agent: own.initial_policy for agent, own in begun.items() if own.initial_policy}
    for agent, begins in beginnings.items():
        seat = agents[agent]
        assert isinstance(seat, Train), "only such seats have an initial policy"
        field = f"agents.{agent}.initial_policy" if seat.initial_policy else "initial_policy"
        definite, begun_with = _policy(tenant, begins, field)
        _refuse_other_shape(spec.for_agent(agent), definite, begun_with)
        agents[agent] = seat.model_copy(update={"initial_policy": str(definite)})
    return {"agents": agents, "initial_policy": ""} if beginnings else {}


def _policy(tenant: TenantStore, policy: str, field: str) -> tuple[PolicyRef, PolicyRecord]:
    """Return the reference with its current version, and the policy."""
    ref = PolicyRef.parse(policy, field=field)
    found = tenant.find_policy(ref, field=field)
    return ref.at(found.checkpoint(field=field).policy_version), found.policy


def _sampled(tenant: TenantStore, spec: JobSpec) -> str:
    """Return the policy of an inference job with its version."""
    ref = PolicyRef.parse(spec.sampled_policy)
    found = tenant.find_policy(ref, field="policy")
    if found.policy.model != spec.model:
        raise InvalidRequestError(
            f"{ref.whose} trained {_in_words(found.policy.model)}, but this job samples "
            f"{_in_words(spec.model)}",
            hint=f"set model={found.policy.model!r}",
            field="policy",
        )
    return str(ref.at(found.version(field="policy")))


def _refuse_other_shape(spec: JobSpec, ref: PolicyRef, begun_with: PolicyRecord) -> None:
    for theirs, ours, to_write in (
        (begun_with.model, spec.model, f"set model={begun_with.model!r}"),
        (begun_with.adapter, spec.adapter, f"use {_to_write(begun_with.adapter)}"),
    ):
        if theirs != ours:
            raise InvalidRequestError(
                f"{ref.whose} trained {_in_words(theirs)}, but this job trains {_in_words(ours)}",
                hint=to_write,
                field="initial_policy",
            )


def _in_words(trained: str | Adapter) -> str:
    if isinstance(trained, str):
        return f"the model {trained!r}"
    if isinstance(trained, LoRA):
        more = ", rsLoRA" * trained.rslora
        layers = f", on {', '.join(trained.target_modules)}" if trained.target_modules else ""
        return f"an adapter of rank {trained.rank} and alpha {trained.alpha:.17g}{more}{layers}"
    return "all parameters"


def _to_write(adapter: Adapter) -> str:
    if not isinstance(adapter, LoRA):
        return "adapter=tg.FullParameters(), on the command line --full"
    said: dict[str, JsonValue] = {"rank": adapter.rank, "alpha": adapter.alpha}
    said |= {"rslora": True} if adapter.rslora else {}
    said |= {"target_modules": [*adapter.target_modules]} if adapter.target_modules else {}
    settings = (shlex.quote(f"adapter.{name}={json.dumps(value)}") for name, value in said.items())
    on_line = " ".join(f"--set {setting}" for setting in settings)
    arguments = ", ".join(f"{name}={value!r}" for name, value in said.items())
    return f"adapter=tg.LoRA({arguments}), on the command line {on_line}"


def _teacher(facts: Facts, spec: DistillationSpec) -> str:
    """Return the teacher by its canonical name, with its version if it is a job's policy."""
    catalog, all_parameters = facts.catalog, False
    named = model = catalog.known_as(spec.teacher)
    if PolicyRef.is_meant(spec.teacher):
        definite, teacher = _policy(facts.tenant, spec.teacher, "teacher")
        named, model = str(definite), teacher.model
        all_parameters = isinstance(teacher.adapter, FullParameters)
    try:
        theirs = catalog.renderer(model)
    except InvalidRequestError as error:
        error.field = "teacher"
        raise
    if theirs.tokenizer_json != catalog.renderer(spec.model, spec.chat_template).tokenizer_json:
        raise InvalidRequestError(
            f"{model!r} has a different tokenizer than {spec.model!r}, so it cannot score the student's "
            f"tokens",
            hint="choose a teacher from the student's family",
            field="teacher",
        )
    _refuse_narrower(catalog, spec, model)
    if refusal := no_room_for_teacher(spec.model, named, model, facts, all_parameters=all_parameters):
        raise refusal.error()
    return named


def _refuse_narrower(catalog: ModelCatalog, spec: DistillationSpec, teacher: str) -> None:
    """Refuse a teacher that would fail the job at its first long episode, or at a rare token."""
    theirs, ours = catalog.facts(teacher), catalog.facts(spec.model)
    longest = min(ours.context_length, spec.limits.max_context_tokens or ours.context_length)
    if longest > theirs.context_length:
        raise InvalidRequestError(
            f"the context of {teacher!r} is {theirs.context_length} tokens, but episodes may have {longest}",
            hint=f"set limits.max_context_tokens to {theirs.context_length} or lower, or choose a teacher "
            "with a longer context",
            field="teacher",
        )
    # Families pad the vocabulary of their larger models further, and a student may sample from the padding. A
    # size of 0 is unknown.
    if 0 < theirs.vocabulary_size < ours.vocabulary_size:
        raise InvalidRequestError(
            f"{teacher!r} has {theirs.vocabulary_size} token ids, but {spec.model!r} may sample any of "
            f"{ours.vocabulary_size}",
            hint="choose a teacher with at least as many",
            field="teacher",
        )
