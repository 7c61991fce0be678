import pytest

from tinkergym.network.model_urls import allow_only, refused_origin

VARIABLE = "TINKERGYM_TEST_ORIGINS"


@pytest.mark.parametrize(
    ("allowed", "refused"),
    [
        (None, None),
        ([], "https://judge.example:443"),
        (["https://judge.example:443"], None),
        (["http://judge.example:80"], "https://judge.example:443"),
    ],
    ids=["no list", "nothing", "this one", "another scheme"],
)
def test_allows_all_without_a_list_and_else_only_its_own(monkeypatch, allowed, refused):
    monkeypatch.delenv(VARIABLE, raising=False)
    if allowed is not None:
        monkeypatch.setenv(VARIABLE, "")  # is put back after the test
        allow_only(VARIABLE, allowed)
    assert refused_origin(VARIABLE, "https://judge.example/v1") == refused
