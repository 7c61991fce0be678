"""What holds on every route, taken from the application so that no new one is forgotten."""

import hashlib

import pytest

pytestmark = pytest.mark.service


OPEN = {("GET", "/v1/health")}


PAGES = {
    ("GET", "/"),
    ("GET", "/v1/openapi.json"),
    ("GET", "/dashboard"),
    ("GET", "/dashboard/{path}"),
    ("GET", "/dashboard/static/{path}"),
    ("GET", "/dashboard/login"),
    ("POST", "/dashboard/login"),
    ("POST", "/dashboard/logout"),
}
"""Not in the document: they show the same to everybody, or whose session the cookie is."""


OF_SESSIONS = {
    ("GET", "/openai/s/{name}/{role}/v1/models"),
    ("POST", "/openai/s/{name}/{role}/v1/{route}"),
    ("POST", "/openai/s/{name}/reward"),
}
"""Not in the document: they take the key of a session instead of a tenant's."""


TENANTLESS = {"/v1/health", "/v1/models", "/v1/renderer", "/v1/jobs", "/v1/sample", "/v1/data"}


TENANTLESS |= {"/v1/environments", "/v1/evaluations", "/v1/policies"}


TENANTLESS |= {"/v1/usage", "/v1/keys", "/v1/queue", "/v1/operation", "/v1/logs", "/v1/logs/{name}"}
TENANTLESS |= {"/openai/v1/models", "/v1/images/missing", "/v1/images/{sha256}"}
TENANTLESS |= {"/v1/data/{data_id}", "/v1/data/chunks/{sha256}", "/v1/names"}
TENANTLESS |= {"/v1/adapters", "/v1/adapters/parts/{sha256}"}
"""Routes without a job's id in their path; /v1/sample has it in the body, of data and of references to
policies their own tests tell.
"""


OF_OPENAI = "/openai/"
"""Below it, errors have the format of the OpenAI API."""


def error_of(response):
    error = response.json()["error"]
    is_openai = response.request.url.path.startswith(OF_OPENAI)
    assert set(error) == (
        {"type", "message", "param", "code"} if is_openai else {"type", "message", "hint", "field", "code"}
    )
    return error


def routes_of(app):
    """Return every route, also those that the document does not describe."""
    return [
        (method, route.path_format) for route in app.routes for method in sorted(route.methods - {"HEAD"})
    ]


def every_route(client):
    document = client.get("/v1/openapi.json").json()
    return [(method.upper(), path) for path, methods in document["paths"].items() for method in methods]


def filled(path, job_id):
    digest = hashlib.sha256(job_id.encode()).hexdigest()
    name = job_id if path.startswith(OF_OPENAI) else "manifest.json"
    return path.format(
        job_id=job_id,
        role="agent",
        route="chat/completions",
        path="jobs",
        policy_id=job_id,
        seq=1,
        step=1,
        episode_id="e",
        name=name,
        sha256=digest,
        data_id=digest,
    )


BODIES = {
    "/v1/jobs/{job_id}/update": {"settings": {"learning_rate": 0.01}},
    "/v1/jobs/{job_id}/labels": {"tags": ["a"]},
    "/v1/jobs/{job_id}/episodes/{episode_id}/branch": {"turn": 1},
    "/v1/jobs/{job_id}/episodes/lease": {"worker_id": "w", "max_episodes": 1, "wait_seconds": 0},
    "/v1/jobs/{job_id}/episodes/submit": {"worker_id": "w", "results": []},
    "/v1/policies/{policy_id}/calls": {"seq": 1, "call": {"op": "publish"}},
    "/openai/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/openai/v1/completions": {"prompt": "a"},
    "/openai/v1/responses": {"input": "a"},
}


def body_of(path, job_id):
    if path == "/v1/names/{name}":
        return {"policy": job_id}
    return BODIES.get(path, {}) | ({"model": job_id} if path.startswith(OF_OPENAI) else {})


def test_matches_inventory_with_what_the_clients_know(client):
    assert set(every_route(client)) == {
        ("GET", "/v1/health"),
        ("GET", "/v1/models"),
        ("GET", "/v1/environments"),
        ("GET", "/v1/renderer"),
        ("POST", "/v1/renderer"),
        ("POST", "/v1/sample"),
        ("POST", "/v1/evaluations"),
        ("POST", "/v1/images/missing"),
        ("PUT", "/v1/images/{sha256}"),
        ("GET", "/v1/jobs"),
        ("POST", "/v1/jobs"),
        ("GET", "/v1/jobs/{job_id}"),
        ("DELETE", "/v1/jobs/{job_id}"),
        ("POST", "/v1/jobs/{job_id}/cancel"),
        ("POST", "/v1/jobs/{job_id}/pause"),
        ("POST", "/v1/jobs/{job_id}/resume"),
        ("POST", "/v1/jobs/{job_id}/update"),
        ("GET", "/v1/usage"),
        ("GET", "/v1/keys"),
        ("GET", "/v1/queue"),
        ("GET", "/v1/operation"),
        ("GET", "/v1/logs"),
        ("GET", "/v1/logs/{name}"),
        ("GET", "/v1/images/{sha256}"),
        ("GET", "/v1/jobs/{job_id}/episodes/rows"),
        ("GET", "/v1/jobs/{job_id}/opponents"),
        ("GET", "/v1/jobs/{job_id}/episodes/{episode_id}"),
        ("POST", "/v1/jobs/{job_id}/episodes/{episode_id}/branch"),
        ("POST", "/v1/jobs/{job_id}/crossplay"),
        ("GET", "/v1/jobs/{job_id}/series"),
        ("GET", "/v1/jobs/{job_id}/settings"),
        ("GET", "/v1/jobs/{job_id}/alarms"),
        ("GET", "/v1/jobs/{job_id}/labels"),
        ("POST", "/v1/jobs/{job_id}/labels"),
        ("GET", "/v1/jobs/{job_id}/events"),
        ("GET", "/v1/jobs/{job_id}/checkpoints"),
        ("GET", "/v1/jobs/{job_id}/evaluations"),
        ("GET", "/v1/jobs/{job_id}/facts"),
        ("GET", "/v1/jobs/{job_id}/ledger"),
        ("GET", "/v1/jobs/{job_id}/results"),
        ("GET", "/v1/jobs/{job_id}/episodes"),
        ("GET", "/v1/jobs/{job_id}/checkpoints/{step}/files/{name}"),
        ("POST", "/v1/jobs/{job_id}/episodes/lease"),
        ("POST", "/v1/jobs/{job_id}/episodes/submit"),
        ("PUT", "/v1/data/chunks/{sha256}"),
        ("POST", "/v1/adapters"),
        ("PUT", "/v1/adapters/parts/{sha256}"),
        ("POST", "/v1/data"),
        ("GET", "/v1/data/{data_id}"),
        ("GET", "/v1/policies"),
        ("GET", "/v1/policies/{policy_id}/calls"),
        ("GET", "/v1/names"),
        ("PUT", "/v1/names/{name}"),
        ("DELETE", "/v1/names/{name}"),
        ("POST", "/v1/policies/{policy_id}/calls"),
        ("GET", "/v1/policies/{policy_id}/calls/{seq}"),
        ("GET", "/openai/v1/models"),
        ("GET", "/openai/v1/models/{name}"),
        ("POST", "/openai/v1/chat/completions"),
        ("POST", "/openai/v1/completions"),
        ("POST", "/openai/v1/responses"),
        ("POST", "/v1/jobs/{job_id}/sessions"),
    }


@pytest.mark.parametrize("key", [None, "", "Bearer", "Bearer tg-wrong", "Basic dGc6", "Bearer \xff"])
def test_answers_nothing_but_health_without_a_valid_key(gateway, key):
    headers = [] if key is None else [(b"authorization", key.encode("latin-1"))]
    with gateway.client(tenant="") as anonymous:
        for method, path in set(routes_of(gateway.app)) - PAGES:
            response = anonymous.request(method, filled(path, "job-1"), headers=headers, json={})
            if (method, path) in OPEN:
                assert response.status_code == 200
            else:
                assert response.status_code == 401, (method, path)
                assert error_of(response)["code"] in {"authentication", "invalid_api_key"}


def test_answers_another_tenants_job_as_missing_on_every_route(gateway, client, spec):
    job_id = client.post("/v1/jobs", json=spec).json()["job_id"]
    with gateway.client("bob") as bob:
        for method, path in every_route(client):
            if path in TENANTLESS:
                continue
            answers = [
                bob.request(
                    method,
                    filled(path, asked),
                    json=body_of(path, asked) if method in {"POST", "PUT"} else None,
                )
                for asked in (job_id, "job-never")
            ]
            assert [answer.status_code for answer in answers] == [404, 404], (method, path)
            assert answers[0].text.replace(job_id, "") == answers[1].text.replace("job-never", "")
        assert bob.get("/v1/jobs").json()["jobs"] == []
        assert bob.get("/v1/jobs", params={"before": job_id}).status_code == 404
    assert client.get(f"/v1/jobs/{job_id}").json()["state"] == "queued"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/v1/jobs/", 404), ("GET", "/docs", 404), ("DELETE", "/v1/jobs", 405)],
)
def test_names_unknown_route_in_our_error_format(client, method, path, status):
    response = client.request(method, path)
    assert response.status_code == status
    assert path in error_of(response)["message"]


def test_documents_how_to_send_a_key_and_which_routes_require(client):
    document = client.get("/v1/openapi.json").json()
    (name, scheme), *others = document["components"]["securitySchemes"].items()
    assert (scheme["type"], scheme["scheme"], others) == ("http", "bearer", [])
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            needed = [] if (method.upper(), path) in OPEN else [{name: []}]
            assert route.get("security", []) == needed, (method, path)


def test_returns_renderer_with_another_template(client, spec):
    answer = client.post("/v1/renderer", json={"model": "nano", "chat_template": "{{ 1 }}"})
    assert answer.status_code == 200, answer.text
    job = client.post("/v1/jobs", json={**spec, "chat_template": "plain"}).json()
    shown = client.get("/v1/renderer", params={"model": job["job_id"]})
    assert (shown.status_code, shown.json()["model"]) == (200, "nano")
    assert client.get("/v1/renderer", params={"model": "job-nobodys"}).status_code == 404
