"""The page of settings names every one there is, and none that is not."""

import re
from pathlib import Path

from backend.config import GatewayLimits, ServiceConfig, VllmSettings
from tinkergym.wire import JobSpec, Limits, Sampling
from tinkergym.wire_algorithms import GRPO, PPO, RLOO, DrGRPO, ReinforcePlusPlus

PAGE = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")

ALGORITHMS = (GRPO, DrGRPO, RLOO, ReinforcePlusPlus, PPO)


def named(section):
    rows = re.findall(r"^\| (`[^|]+) \|", PAGE.split(f"## Of {section}")[1].split("## ")[0], re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}


def test_every_setting_of_a_job_is_on_the_page():
    fields = {name for model in (JobSpec, *ALGORITHMS, Sampling, Limits) for name in model.model_fields}
    assert named("a job") == fields


def test_every_setting_of_the_service_is_on_the_page():
    limits = {f"limits.{name}" for name in GatewayLimits.model_fields}
    vllm = {f"vllm.{name}" for name in VllmSettings.model_fields}
    assert named("the service") == set(ServiceConfig.model_fields) - {"limits", "vllm"} | limits | vllm
