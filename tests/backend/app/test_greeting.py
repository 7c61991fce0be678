"""What the operator reads while the service starts, from a health route that says what the test wants."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from backend.app.greeting import Greeting, Notice
from backend.app.supervisor import main


@pytest.fixture
def health():
    """Return what the health route answers, and where it is."""
    answer = {"waiting_for": ["pool:nano"]}

    class Route(BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Route)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield answer, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_repeats_why_nothing_starts_only_when_that_changes(health):
    answer, url = health
    lines, refusals, heard = [], {}, []
    greeting = Greeting(
        url, Path("local.json"), lines.append, lambda: refusals, heard=lambda: heard.append(1)
    )

    def look(now):
        # One look may find the machine too busy to answer; a few do not.
        for part in range(20):
            greeting.give_when_due(now + part * 2.0)

    look(1000.0)
    assert len(lines) == 1
    assert heard
    assert "still starting: pool:nano" in str(lines[0])
    assert lines[0].to_json()["waiting_for"] == ["pool:nano"]
    for reason in ("torch sees no GPU (set device=cpu)", "no such file"):
        refusals["nano"] = reason
        look(2000.0 if reason.startswith("torch") else 3000.0)
        assert str(lines[-1]) == f"the worker of model 'nano' does not start: {reason}"
        assert {"event": "worker_refused", "model": "nano", "reason": reason}.items() <= lines[
            -1
        ].to_json().items()
    assert len(lines) == 3
    answer["waiting_for"] = []
    look(4000.0)
    assert str(lines[3]).startswith("ready after")
    assert lines[3].to_json()["event"] == "ready"


pytestmark = pytest.mark.service


def test_prints_json_for_a_program(tmp_path, monkeypatch, capfd):
    (tmp_path / "odd" / "local.json").mkdir(parents=True)
    (tmp_path / "odd").chmod(0o700)
    assert main(["--json", "--set", f"data_dir={tmp_path / 'odd'}", "--set", "port=0"]) == 1
    out, err = capfd.readouterr()
    assert err.startswith("tinkergym serve: ")
    assert "local.json cannot be written" in json.loads(out)["error"]["message"]

    def ready(_, role, say):
        say(Notice("ready", "ready after 1.0 s", {"seconds": 1.0}))
        return 0

    monkeypatch.setattr("backend.app.supervisor.serve", ready)
    assert main(["--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {
        "event": "ready",
        "message": "ready after 1.0 s",
        "seconds": 1.0,
    }
