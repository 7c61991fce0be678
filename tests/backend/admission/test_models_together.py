"""A teacher on another base model than its student: refused where no room was planned for it."""

from __future__ import annotations

from backend.admission.models_together import no_room_for_teacher
from backend.config import ServiceConfig
from tests.backend.admission.packs import facts
from tinkergym.schema.jobs.parts import FullParameters, LoRA

MUCH, LITTLE = 64 * 10**9, 3 * 10**9
GPU = {"0": 80 * 10**9}
LISTED = {"models": {"nano": {"teachers": ["nano-instruct"]}}}
CLUSTER = {"address": "10.0.0.5:6379"}


def refusal(tmp_path, teacher, memory=MUCH, gpus=GPU, adapter=None, **settings):
    config = ServiceConfig(data_dir=tmp_path, **settings)
    given = facts(config, memory=lambda: memory, gpus=lambda: gpus)
    model = "nano-instruct" if adapter else teacher
    trained = isinstance(adapter, FullParameters)
    found = no_room_for_teacher("nano", teacher, model, given, all_parameters=trained)
    assert found is None or found.field == "teacher"
    return found and found.code


def test_refuses_teacher_for_which_no_gpu_is_planned(tmp_path):
    assert refusal(tmp_path, "nano-instruct") == "several_models"
    assert refusal(tmp_path, "job-1@2", adapter=LoRA(rank=4)) == "several_models"
    assert refusal(tmp_path, "job-1@2", adapter=FullParameters(), **LISTED) == "several_models"


def test_accepts_teacher_that_is_planned_or_has_the_same_model(tmp_path):
    assert not refusal(tmp_path, "nano")
    assert not refusal(tmp_path, "nano-instruct", **LISTED)
    assert not refusal(tmp_path, "job-1@2", adapter=LoRA(rank=4), **LISTED)


def test_accepts_any_teacher_on_one_machine_without_gpus(tmp_path):
    assert not refusal(tmp_path, "nano-instruct", memory=LITTLE, gpus={})
    assert not refusal(tmp_path, "nano-instruct", memory=LITTLE, models={"nano": {"placement": {"gpus": 0}}})


def test_refuses_teacher_that_memory_does_not_hold(tmp_path):
    assert refusal(tmp_path, "nano-instruct", gpus={}, ray=CLUSTER) == "models_too_large"
    assert not refusal(tmp_path, "nano-instruct", gpus={}, ray=CLUSTER, **LISTED)
