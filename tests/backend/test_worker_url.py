import socket
import stat
from urllib.parse import urlsplit

import pytest

from backend.errors import ConfigError
from backend.worker_url import any_port, listen, remove, require_private, socket_path, unix_url


@pytest.fixture(params=["unix", "tcp"])
def place(request, tmp_path):
    return unix_url(tmp_path / "pool-1.sock") if request.param == "unix" else any_port()


def connect(url):
    path = socket_path(url)
    family, address = (socket.AF_UNIX, str(path)) if path else (socket.AF_INET, url_parts(url))
    with socket.socket(family) as connection:
        connection.connect(address)


def url_parts(url):
    parts = urlsplit(url)
    return parts.hostname, parts.port


def test_listens_until_it_ends_and_leaves_nothing(place, tmp_path):
    listener, url = listen(place)
    with listener:
        connect(url)
    with pytest.raises(ConnectionRefusedError):
        connect(url)
    remove(url)
    assert list(tmp_path.iterdir()) == []
    remove(url)


def test_opens_socket_for_owner_only_and_replaces_a_leftover(tmp_path):
    url = unix_url(tmp_path / "pool-1.sock")
    with listen(url)[0], listen(url)[0]:
        assert stat.S_IMODE(socket_path(url).stat().st_mode) == 0o600
        connect(url)


def test_reports_taken_port_with_its_url():
    listener, url = listen(any_port())
    with listener, pytest.raises(ConfigError, match=url):
        listen(url)


@pytest.mark.parametrize(
    "url", ["", "/run/pool.sock", "unix://", "unix://host/pool", "http://host", "http://:80", "ftp://host:1"]
)
def test_rejects_what_is_no_url_of_a_worker(url):
    with pytest.raises(ConfigError):
        socket_path(url)


def test_listens_beyond_this_machine_only_on_a_private_network():
    require_private("127.0.0.1", private_network=False)
    require_private("10.0.0.5", private_network=True)
    with pytest.raises(ConfigError) as refused:
        require_private("10.0.0.5", private_network=False)
    assert refused.value.field == "private_network"
