import json

import pytest

from backend.app.main import main
from backend.app.notice import Notice

pytestmark = pytest.mark.service


def test_prints_json_for_a_program(tmp_path, monkeypatch, capfd):
    (tmp_path / "odd" / "local.json").mkdir(parents=True)
    (tmp_path / "odd").chmod(0o700)
    assert main(["--json", "--set", f"data_dir={tmp_path / 'odd'}", "--set", "port=0"]) == 1
    out, err = capfd.readouterr()
    assert err.startswith("tinkergym serve: ")
    assert "local.json cannot be written" in json.loads(out)["error"]["message"]

    def ready(_, say):
        say(Notice("ready", "ready after 1.0 s", {"seconds": 1.0}))
        return 0

    monkeypatch.setattr("backend.app.main.serve", ready)
    assert main(["--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {
        "event": "ready",
        "message": "ready after 1.0 s",
        "seconds": 1.0,
    }
