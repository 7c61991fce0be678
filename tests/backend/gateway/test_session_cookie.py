import asyncio

import pytest

from backend.gateway.session_cookie import SessionCookie

HOST = "127.0.0.1:8265"
COOKIE = "other=1; tinkergym-8265=tg-session-x; tinkergym-9999=tg-session-y"


def key_of(method="GET", path="/v1/jobs", **headers):
    """Return the key that the application behind sees."""
    seen = []

    async def application(scope, receive, send):
        seen.append(dict(scope["headers"]).get(b"authorization", b"").decode())

    given = {"host": HOST, "cookie": COOKIE} | {name.replace("_", "-"): one for name, one in headers.items()}
    raw = [(name.encode(), value.encode()) for name, value in given.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": raw}
    asyncio.run(SessionCookie(application)(scope, None, None))
    return seen[0].removeprefix("Bearer ")


def test_lets_the_cookie_of_this_port_stand_for_a_key():
    assert key_of() == key_of(sec_fetch_site="same-origin") == key_of(sec_fetch_site="none") == "tg-session-x"
    assert key_of("POST", origin=f"http://{HOST}") == "tg-session-x"
    assert key_of(authorization="Bearer tg-own") == "tg-own"


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site", "origin": f"http://{HOST}"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_ignores_the_cookie_of_requests_from_elsewhere(method, headers):
    assert key_of(method, **headers) == ""


def test_ignores_it_where_a_request_that_acts_names_no_origin():
    assert key_of("POST") == key_of("DELETE") == key_of("PUT") == ""


def test_ignores_it_outside_the_api():
    assert key_of(path="/dashboard") == ""
