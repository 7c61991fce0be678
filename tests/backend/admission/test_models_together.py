"""A teacher on another base model than its student: refused where no room was planned for it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from backend.admission.models_together import teacher_has_room
from backend.config import ServiceConfig
from tests.backend.admission.packs import admit, facts
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.distillation import DistillationSpec
from tinkergym.schema.jobs.parts import FullParameters, LoRA

MUCH, LITTLE = 64 * 10**9, 3 * 10**9
GPU = {"0": 80 * 10**9}
LISTED = {"models": {"nano": {"teachers": ["nano-instruct"]}}}
CLUSTER = {"address": "10.0.0.5:6379"}


def checked(tmp_path, teacher, memory=MUCH, gpus=GPU, adapter=None, **settings):
    taught = SimpleNamespace(model="nano-instruct", adapter=adapter)
    tenant = SimpleNamespace(find_policy=lambda ref, field: SimpleNamespace(policy=taught))
    spec = DistillationSpec(environment={"id": "math/Add-v0"}, model="nano", teacher=teacher, steps=1)
    config = ServiceConfig(data_dir=tmp_path, **settings)
    given = facts(config, tenant=tenant, memory=lambda: memory, gpus=lambda: gpus)
    return admit(teacher_has_room, spec, given)


def refused(*arguments, **settings):
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "teacher") as caught:
        checked(*arguments, **settings)
    return caught.value.code


def test_refuses_teacher_for_which_no_gpu_is_planned(tmp_path):
    assert refused(tmp_path, "nano-instruct") == "several_models"
    assert refused(tmp_path, "job-1@2", adapter=LoRA(rank=4)) == "several_models"
    assert refused(tmp_path, "job-1@2", adapter=FullParameters(), **LISTED) == "several_models"


def test_accepts_teacher_that_is_planned_or_has_the_same_model(tmp_path):
    checked(tmp_path, "nano")
    checked(tmp_path, "nano-instruct", **LISTED)
    checked(tmp_path, "job-1@2", adapter=LoRA(rank=4), **LISTED)


def test_accepts_any_teacher_on_one_machine_without_gpus(tmp_path):
    checked(tmp_path, "nano-instruct", memory=LITTLE, gpus={})
    checked(tmp_path, "nano-instruct", memory=LITTLE, models={"nano": {"placement": {"gpus": 0}}})


def test_refuses_teacher_that_memory_does_not_hold(tmp_path):
    assert refused(tmp_path, "nano-instruct", gpus={}, ray=CLUSTER) == "models_too_large"
    checked(tmp_path, "nano-instruct", gpus={}, ray=CLUSTER, **LISTED)
