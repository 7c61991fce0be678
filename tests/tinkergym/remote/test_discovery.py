import json

import pytest

import tinkergym as tg


@pytest.mark.parametrize("ending", ["/", "/v1", "/v1/", "/ \n"])
def test_accepts_the_services_url_as_other_clients_want_it(service, ending):
    with tg.Client(service.url + ending, service.api_key) as client:
        assert client.url == service.url
        assert client.models()[0].name == "nano"


def test_finds_local_service_by_the_file_it_writes(service, monkeypatch, tmp_path, connect):
    for name in ("TINKERGYM_URL", "TINKERGYM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TINKERGYM_HOME", str(tmp_path))
    (tmp_path / "local.json").write_text(json.dumps({"url": service.url, "api_key": service.api_key}))
    assert connect().models()[0].name == "nano"


def test_sends_no_other_service_the_local_key(service, monkeypatch, tmp_path, connect):
    monkeypatch.delenv("TINKERGYM_API_KEY")
    monkeypatch.setenv("TINKERGYM_HOME", str(tmp_path))
    (tmp_path / "local.json").write_text(
        json.dumps({"url": "http://127.0.0.1:8265", "api_key": service.api_key})
    )
    with pytest.raises(tg.TinkerGymError):
        connect(service.url).models()
