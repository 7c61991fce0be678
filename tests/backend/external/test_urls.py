import pytest

from backend.config import load_config
from backend.errors import ConfigError
from backend.external.urls import as_remote, check_listed, is_public, look_up, normal_origins, pinned
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.environment_url import parse_environment_url
from tinkergym.schema.jobs.parts import EnvironmentRef

REMOTE = "tinkergym/Remote-v0"
LISTED = normal_origins(["wss://envs.example.org", "ws://10.0.0.5:8300", "ws://localhost:8300"])


def ref(url, **kwargs):
    return EnvironmentRef(id=REMOTE, kwargs={"url": url, **kwargs})


def resolving(**addresses):
    return lambda host, port: addresses[host.replace(".", "_")]


def test_allows_nothing_unless_the_operator_says_so():
    with pytest.raises(InvalidRequestError) as caught:
        check_listed(ref("wss://envs.example.org"), [])
    error = caught.value
    assert error.field == "environment.kwargs.url"


@pytest.mark.parametrize(
    "url",
    [
        "ws://envs.example.org",
        "wss://envs.example.org:8443",
        "wss://envs.example.org.evil.example",
        "wss://evil.example/envs.example.org",
        "wss://envs.example.org@evil.example",
        "ws://169.254.169.254",
        "ws://0x0a000005:8300",
        "ws://[::ffff:10.0.0.5]:8300",
        "https://envs.example.org",
    ],
)
def test_rejects_origin_that_only_looks_like_a_listed_one(url):
    with pytest.raises(InvalidRequestError) as caught:
        check_listed(ref(url), LISTED)
    assert caught.value.field == "environment.kwargs.url"


@pytest.mark.parametrize("url", ["wss://ENVS.example.org.", "wss://envs.example.org:443/some/path"])
def test_treats_spellings_of_a_listed_origin_alike(url):
    assert check_listed(ref(url), LISTED).host == "envs.example.org"


@pytest.mark.parametrize(
    ("kwargs", "field"),
    [
        ({"address": "127.0.0.1"}, "address"),
        ({"render_mode": "human"}, "render_mode"),
        ({"token": 7}, "token"),
        ({"busy_seconds": 1e9}, "busy_seconds"),
        ({"hold": "for ever"}, "hold"),
    ],
)
def test_lets_job_set_only_its_own_arguments(kwargs, field):
    with pytest.raises(InvalidRequestError) as caught:
        check_listed(ref("wss://envs.example.org", **kwargs), LISTED)
    assert caught.value.field == f"environment.kwargs.{field}"


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "192.168.0.1",
        "172.16.0.1",
        "169.254.169.254",
        "100.100.100.200",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fd00:ec2::254",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
        "ff02::1",
    ],
)
def test_rejects_a_name_that_leads_into_the_services_own_network(address):
    assert not is_public(address)
    url = parse_environment_url("wss://envs.example.org")
    # One bad address is enough, wherever it stands.
    for found in ([address], ["93.184.216.34", address]):
        with pytest.raises(InvalidRequestError) as caught:
            look_up(url, LISTED, resolving(envs_example_org=found))
        assert caught.value.field == "environment.kwargs.url"


def test_takes_public_addresses_older_kind_first():
    found = ["2606:2800:220:1::1", "93.184.216.34"]
    assert all(map(is_public, found))
    url = parse_environment_url("wss://envs.example.org")
    assert look_up(url, LISTED, resolving(envs_example_org=found)) == "93.184.216.34"


def test_takes_a_private_address_when_listed_itself():
    listed = normal_origins(["ws://inside.example:8300", "ws://10.0.0.5:8300"])
    url = parse_environment_url("ws://inside.example:8300")
    assert look_up(url, listed, resolving(inside_example=["10.0.0.5"])) == "10.0.0.5"
    with pytest.raises(InvalidRequestError) as caught:
        look_up(url, listed, resolving(inside_example=["10.0.0.6"]))
    assert caught.value.field == "environment.kwargs.url"
    direct = parse_environment_url("ws://10.0.0.5:8300")
    assert look_up(direct, listed, lambda host, port: [host]) == "10.0.0.5"
    here = parse_environment_url("ws://localhost:8300")
    assert look_up(here, LISTED, lambda host, port: ["::1", "127.0.0.1"]) == "127.0.0.1"


def test_connects_to_the_checked_address_whatever_the_name_says_later():
    answers = iter([["93.184.216.34"], ["127.0.0.1"]])
    fixed = pinned(ref("wss://envs.example.org", token="t"), LISTED, lambda host, port: next(answers))
    assert fixed.kwargs["address"] == "93.184.216.34"
    assert (fixed.kwargs["token"], fixed.kwargs["hold"]) == ("t", "episode")
    with pytest.raises(InvalidRequestError) as caught:
        pinned(ref("wss://envs.example.org"), LISTED, lambda host, port: next(answers))
    assert caught.value.field == "environment.kwargs.url"


def test_shows_no_token_without_one_of_the_job():
    fixed = pinned(ref("wss://envs.example.org"), LISTED, lambda host, port: ["93.184.216.34"])
    # None would let the variable of the service's own process step in.
    assert fixed.kwargs["token"] == ""


def test_says_in_a_sentence_that_nobody_knows_name():
    def unknown(host, port):
        raise OSError("Name or service not known")

    with pytest.raises(InvalidRequestError) as caught:
        pinned(ref("wss://envs.example.org"), LISTED, unknown)
    assert caught.value.field == "environment.kwargs.url"


def test_takes_address_as_id_for_the_remote_environment():
    written = as_remote(EnvironmentRef(id="wss://envs.example.org", kwargs={"token": "t"}))
    assert written == ref("wss://envs.example.org", token="t")
    pack = EnvironmentRef(id="board/TicTacToeVs-v0")
    assert as_remote(pack) is pack


def test_reads_operators_list_in_one_spelling_and_rejects_nonsense():
    config = load_config(settings=['environment_urls=["WSS://Envs.Example.org", "ws://[::1]:8300"]'])
    assert config.environment_urls == ["wss://envs.example.org:443", "ws://[::1]:8300"]
    for wrong in ("https://x", "ws://x/path", "*"):
        with pytest.raises(ConfigError) as caught:
            load_config(settings=[f'environment_urls=["{wrong}"]'])
        assert caught.value.field == "environment_urls"
