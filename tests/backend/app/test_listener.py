import socket

import pytest

from tests.backend.served import refusal

pytestmark = pytest.mark.service


def test_names_port_in_use(tmp_path, capfd):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port}" in refusal(capfd, f"data_dir={tmp_path}", f"port={port}")
