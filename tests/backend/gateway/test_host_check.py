import pytest

from backend.config import load_config
from backend.errors import ConfigError

pytestmark = pytest.mark.service

OURS = [
    "127.0.0.1",
    "localhost",
    "LOCALHOST:8265",
    "localhost.",
    "[::1]:8265",
    "[::1]",
    "10.0.0.5:80",
    "gym.example",
]
NOT_OURS = [
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example:8265",
    "xlocalhost",
    ":80",
    "a b",
    "[x]",
    "",
]


@pytest.mark.parametrize("host", OURS)
def test_answers_requests_to_its_own_names_and_addresses(client, host):
    assert client.get("/v1/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", NOT_OURS)
@pytest.mark.parametrize("path", ["/v1/health", "/v1/jobs", "/v1/openapi.json", "/nothing"])
def test_refuses_requests_to_other_names(client, host, path):
    answer = client.get(path, headers={"Host": host})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["field"]) == (421, "MisdirectedRequestError", "Host")
    assert "host_names" in error["hint"]


def test_creates_no_job_for_a_page_elsewhere(client, spec):
    assert client.post("/v1/jobs", json=spec, headers={"Host": "evil.example"}).status_code == 421
    assert client.post("/v1/jobs", json=spec).json()["created_at"]


@pytest.mark.parametrize("name", ["http://gym.example", "gym.example:80", "", "*", "a b"])
def test_rejects_scheme_and_port_in_names_of_hosts(name):
    with pytest.raises(ConfigError) as caught:
        load_config(settings=[f'host_names=["{name}"]'])
    assert caught.value.field.startswith("host_names")
