import socket
import stat

import pytest

from backend.errors import ConfigError
from backend.worker_url import is_answered, listen, new_url, remove, socket_path


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_answers_a_worker_from_when_it_listens_until_it_ends(transport, tmp_path):
    url = new_url(transport, tmp_path, "pool-1")
    assert not is_answered(url)
    with listen(url):
        assert is_answered(url)
    assert not is_answered(url)
    remove(url)
    assert list(tmp_path.iterdir()) == []
    remove(url)


def test_opens_socket_for_owner_only_and_replaces_a_leftover(tmp_path):
    url = new_url("unix", tmp_path, "pool-1")
    with listen(url), listen(url):
        assert stat.S_IMODE(socket_path(url).stat().st_mode) == 0o600
        assert is_answered(url)


def test_reports_taken_port_with_its_url(tmp_path):
    url = new_url("tcp", tmp_path, "pool-1")
    with listen(url), pytest.raises(ConfigError, match=url):
        listen(url)
    remove(url)


@pytest.mark.parametrize(
    "url", ["", "/run/pool.sock", "unix://", "unix://host/pool", "http://host", "http://:80", "ftp://host:1"]
)
def test_rejects_what_is_no_url_of_a_worker(url):
    with pytest.raises(ConfigError):
        socket_path(url)


def test_keeps_a_port_for_its_worker_once_url_is_made(tmp_path):
    url = new_url("tcp", tmp_path, "pool-1")
    port = int(url.rpartition(":")[2])
    with socket.socket() as other, pytest.raises(OSError):
        other.bind(("127.0.0.1", port))
    with listen(url):
        assert is_answered(url)
    remove(url)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
