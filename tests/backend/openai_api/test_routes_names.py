import pytest

pytestmark = pytest.mark.service


def test_lists_models_and_own_jobs(api, service):
    listed = api.get("models").json()
    assert listed["object"] == "list"
    names = {one["id"]: one["max_model_len"] for one in listed["data"]}
    assert names.items() >= {"nano": 512, "nano-instruct": 512}.items()


def test_shows_one_model_by_its_name(api):
    shown = api.get("models/nano").json()
    assert (shown["id"], shown["object"], shown["max_model_len"]) == ("nano", "model", 512)
    missing = api.get("models/gpt-9")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
