"""The pages, their cookie and its limits, over the real gateway."""

import re
from urllib.parse import urlsplit

import pytest

from backend.dashboard.frontend import PACKAGED

pytestmark = pytest.mark.service

OURS = {"Origin": "http://127.0.0.1:8265", "Host": "127.0.0.1:8265"}
THEIRS = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:9999", "Sec-Fetch-Site": "same-site"},
    {},
]


@pytest.fixture
def browser(gateway):
    with gateway.client(tenant="") as browser:
        browser.headers.update(OURS)
        yield browser


def log_in(browser, key, **form):
    return browser.post("/dashboard/login", content=f"key={key}&next={form.get('next', '')}")


def test_leads_a_browser_from_the_root_to_the_login(browser):
    assert browser.get("/", headers={"Accept": "text/html,*/*"}).headers["location"] == "/dashboard"
    answer = browser.get("/dashboard/jobs/job-1")
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        "/dashboard/login?next=/dashboard/jobs/job-1",
    )
    assert "API key" in browser.get(answer.headers["location"]).text


def test_opens_pages_and_api_with_the_cookie_of_a_key(gateway, browser):
    assert browser.get("/v1/jobs").status_code == 401
    answer = log_in(browser, gateway.keys["ada"], next="/dashboard/usage")
    assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/usage")
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert gateway.keys["ada"] not in cookie
    assert browser.get("/v1/jobs").json()["jobs"] == []
    assert gateway.tenants["ada"] in browser.get("/dashboard").text


@pytest.mark.parametrize(
    "wanted", ["//evil.example", "https://evil.example/dashboard/", "/v1/jobs", "%2F%2Fevil"]
)
def test_leads_nowhere_else_after_the_login(gateway, browser, wanted):
    assert log_in(browser, gateway.keys["ada"], next=wanted).headers["location"] == "/dashboard"


@pytest.mark.parametrize("key", ["", "tg-wrong", "tg-session-wrong", "<script>alert(1)</script>"])
def test_rejects_what_is_no_key(browser, key):
    answer = log_in(browser, key)
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert "alert(1)" not in answer.text


def test_makes_no_session_from_a_session(gateway, browser):
    log_in(browser, gateway.keys["ada"])
    (token,) = browser.cookies.values()
    assert log_in(browser, token).status_code == 401


@pytest.mark.parametrize("headers", THEIRS)
def test_rejects_acting_with_the_cookie_from_another_page(gateway, browser, spec, headers):
    job_id = gateway.client().post("/v1/jobs", json=spec).json()["job_id"]
    log_in(browser, gateway.keys["ada"])
    del browser.headers["Origin"]
    assert browser.post(f"/v1/jobs/{job_id}/cancel", headers=headers).status_code == 401
    assert browser.get(f"/v1/jobs/{job_id}").json()["state"] == "queued"
    assert browser.post(f"/v1/jobs/{job_id}/cancel", headers=OURS).json()["state"] == "cancelled"


@pytest.mark.parametrize("headers", THEIRS[:3])
def test_rejects_login_and_logout_from_another_page(gateway, browser, headers):
    log_in(browser, gateway.keys["ada"])
    for path in ("/dashboard/login", "/dashboard/logout"):
        answer = browser.post(path, content=f"key={gateway.keys['bob']}", headers=headers)
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
    assert browser.get("/v1/jobs").status_code == 200


def test_ends_the_session_with_logging_out(gateway, browser):
    log_in(browser, gateway.keys["ada"])
    (stolen,) = browser.cookies.items()
    assert browser.post("/dashboard/logout").headers["location"] == "/dashboard/login"
    assert not browser.cookies
    browser.cookies.set(*stolen)
    assert browser.get("/v1/jobs").status_code == 401


def test_ends_the_session_with_revoking_its_key(gateway, browser):
    keys = gateway.store.keys
    log_in(browser, key := keys.create(gateway.tenants["ada"], "lost"))
    assert browser.get("/v1/jobs").status_code == 200
    keys.revoke(keys.id_of(key))
    assert browser.get("/v1/jobs").status_code == 401
    assert browser.get("/dashboard").status_code == 303


def test_sees_and_cannot_act_with_a_read_only_key(gateway, browser, spec):
    job_id = gateway.client().post("/v1/jobs", json=spec).json()["job_id"]
    log_in(browser, gateway.store.keys.create(gateway.tenants["ada"], "screen", read_only=True))
    assert [one["job_id"] for one in browser.get("/v1/jobs").json()["jobs"]] == [job_id]
    assert 'data-read-only="yes"' in browser.get("/dashboard").text
    for path in ("cancel", "pause", "labels"):
        assert browser.post(f"/v1/jobs/{job_id}/{path}", json={}).status_code == 403
    assert browser.get(f"/v1/jobs/{job_id}").json()["state"] == "queued"


def test_allows_no_inline_script_and_no_other_host(gateway, browser):
    log_in(browser, gateway.keys["ada"])
    answers = [browser.get(path) for path in ("/dashboard", "/dashboard/login", "/dashboard/static/main.js")]
    for answer in answers:
        policy = dict(
            one.strip().split(" ", 1) for one in answer.headers["content-security-policy"].split(";")
        )
        assert (policy["default-src"], policy["script-src"], policy["connect-src"]) == (
            "'none'",
            "'self'",
            "'self'",
        )
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|style=", answer.text.split("export")[0])


def test_names_no_other_host_in_any_file():
    for path in PACKAGED.rglob("*.*"):
        named = re.findall(r"https?://[^\s\"'`]+", path.read_text(encoding="utf-8"))
        assert {urlsplit(one).hostname for one in named} <= {"www.w3.org"}, path


def test_uses_only_text_nodes_for_what_the_service_says():
    for path in PACKAGED.rglob("*.js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function", path.read_text()
        )


@pytest.mark.parametrize("path", ["../index.html", "..%2F..%2Fpages.py", "nothing.js", "%2Fetc%2Fpasswd", ""])
def test_serves_only_files_of_the_frontend(browser, path):
    assert browser.get(f"/dashboard/static/{path}").status_code in {303, 404}


def test_sends_an_unchanged_file_once(browser):
    first = browser.get("/dashboard/static/main.js")
    assert first.headers["content-type"].startswith("text/javascript")
    again = browser.get("/dashboard/static/main.js", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_bounds_the_javascript_in_all():
    assert sum(len(path.read_text().splitlines()) for path in PACKAGED.rglob("*.js")) <= 4000
