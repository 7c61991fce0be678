import stat

import pytest

from backend.errors import ConfigError
from backend.worker_url import any_port, is_answered, listen, remove, require_private, socket_path, unix_url


@pytest.fixture(params=["unix", "tcp"])
def place(request, tmp_path):
    return unix_url(tmp_path / "pool-1.sock") if request.param == "unix" else any_port()


def test_answers_a_worker_from_when_it_listens_until_it_ends(place, tmp_path):
    listener, url = listen(place)
    with listener:
        assert is_answered(url)
    assert not is_answered(url)
    remove(url)
    assert list(tmp_path.iterdir()) == []
    remove(url)


def test_opens_socket_for_owner_only_and_replaces_a_leftover(tmp_path):
    url = unix_url(tmp_path / "pool-1.sock")
    with listen(url)[0], listen(url)[0]:
        assert stat.S_IMODE(socket_path(url).stat().st_mode) == 0o600
        assert is_answered(url)


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
