import socket

import pytest

from backend.app.supervisor import main

pytestmark = pytest.mark.service


def refusal(capfd, *settings, code=1):
    """Run `serve` where it must refuse, and return its one sentence."""
    arguments = [word for setting in settings for word in ("--set", setting)]
    assert main(arguments) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("tinkergym serve: ")
    assert err.count("\n") == 1
    return err


def test_names_port_in_use(tmp_path, capfd):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port}" in refusal(capfd, f"data_dir={tmp_path}", f"port={port}")
