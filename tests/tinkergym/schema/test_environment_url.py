import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.environment_url import parse_environment_url
from tinkergym.schema.names import is_environment_url


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("ws://Host", "ws://host:80"),
        ("wss://host./a/b/", "wss://host:443/a/b"),
        ("WS://[::1]:9", "ws://[::1]:9"),
    ],
)
def test_gives_an_address_one_spelling(text, canonical):
    assert is_environment_url(text)
    assert str(parse_environment_url(text)) == canonical
    assert str(parse_environment_url(canonical)) == canonical


@pytest.mark.parametrize(
    "text",
    [
        *(None, "", "host:80", "http://host", "ws://", "ws://h:x", "ws://h:99999", "ws://a b", "ws://世"),
        *("ws://user@host", "ws://host?q=1", "ws://host#f"),
    ],
)
def test_rejects_anything_but_an_address(text):
    with pytest.raises(InvalidRequestError) as refused:
        parse_environment_url(text)
    assert refused.value.field == "url"
