"""The generated reference pages name everything there is."""

import json

import pytest

import tinkergym
from backend.config import DashboardSettings, Prices, RaySettings, ServiceConfig
from backend.planning.wishes import LearnerPlacement, ModelPlacement
from backend.settings.gateway_limits import GatewayLimits
from backend.settings.served_models import VllmSettings
from scripts import docs_reference


def test_documents_every_setting_of_the_service_on_its_page():
    page = docs_reference.settings_page()
    limits = {f"limits.{name}" for name in GatewayLimits.model_fields}
    vllm = {f"vllm.{name}" for name in VllmSettings.model_fields}
    ray = {f"ray.{name}" for name in RaySettings.model_fields}
    placement = {f"placement.{name}" for name in ModelPlacement.model_fields} - {"placement.learner"}
    placement |= {f"placement.learner.{name}" for name in LearnerPlacement.model_fields}
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    own = set(ServiceConfig.model_fields) - {"limits", "ray", "vllm", "dashboard", "prices"}
    own |= {f"dashboard.{name}" for name in DashboardSettings.model_fields}
    own |= {f"prices.{name}" for name in Prices.model_fields}
    assert {row[0].strip("| `") for row in rows} == own | limits | ray | vllm | placement
    assert all(len(row) == 3 and row[2].strip(" |") for row in rows)


@pytest.mark.parametrize("command", ["serve", "train", "jobs delete", "keys create", "eval", "serve-env"])
def test_documents_every_command_on_its_page(command):
    assert f"`tinkergym {command}`" in docs_reference.command_line_page()


def test_documents_routes_on_their_page_and_bodies_on_another():
    files = docs_reference.http_files()
    document = json.loads(files["reference/openapi.json"])
    assert document["paths"]
    assert all(path in files["reference/http.md"] for path in document["paths"])
    assert all(
        f"## {name}\n" in files["reference/http_schemas.md"] for name in document["components"]["schemas"]
    )


def test_rejects_public_name_without_a_page():
    with pytest.raises(ValueError, match="Unknown"):
        docs_reference.python_pages([*tinkergym.__all__, "Unknown"])


def test_shows_what_client_job_and_policy_inherit():
    text = "\n".join(docs_reference.python_pages().values())
    for name in ("client.Client", "job.Job", "policy.Policy"):
        assert f"::: tinkergym.remote.{name}\n    options:\n      inherited_members: true" in text
