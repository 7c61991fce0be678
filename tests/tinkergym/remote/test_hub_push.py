"""Exports reach the hub through its own client; the hub is a fake of its HTTP API in this process."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.remote.hub_push import push_folder


class Hub(ThreadingHTTPServer):
    """Keeps the files of commits."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Answer)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.created, self.files, self.deleted = [], {}, []


class _Answer(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_):
        pass

    def _body(self):
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _say(self, answer, status=200):
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self._say(
            [{"type": "file", "path": "old.bin", "size": 1, "oid": "0"}] if "/tree/" in self.path else {}
        )

    def do_POST(self):
        body = self._body()
        if self.headers.get("Authorization") != "Bearer hf_right":
            self._say({"error": "Invalid user token."}, 401)
        elif self.path == "/api/repos/create":
            self.server.created.append(json.loads(body))
            self._say({"url": f"{self.server.url}/me/mine", "name": "me/mine"})
        elif self.path == "/api/validate-yaml":
            self._say({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            # Larger files go through the client's own storage protocol, in compiled code.
            asked = [file["path"] for file in json.loads(body)["files"]]
            own = {"uploadMode": "regular", "shouldIgnore": False}
            self._say({"files": [{"path": path, **own} for path in asked]})
        elif "/commit/" in self.path:
            self._commit([json.loads(line) for line in body.splitlines() if line])
        else:
            self._say({"error": f"no such route: {self.path}"}, 404)

    def _commit(self, lines):
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.server.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                self.server.deleted.append(value["path"])
        url = f"{self.server.url}/me/mine/commit/abc"
        self._say({"success": True, "commitOid": "abc", "commitUrl": url})


@pytest.fixture
def hub():
    with Hub() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "README.md").write_text("---\nlibrary_name: peft\n---\n# mine\n")
    (tmp_path / "adapter_model.safetensors").write_bytes(bytes(range(256)) * 10)
    return tmp_path


def test_pushes_all_files_into_a_private_repository(hub, folder):
    url = push_folder(folder, "me/mine", token="hf_right", endpoint=hub.url)
    assert url.endswith("/me/mine/commit/abc")
    (created,) = hub.created
    assert (created["name"], created["organization"], created["visibility"]) == ("mine", "me", "private")
    assert hub.files == {path.name: path.read_bytes() for path in folder.iterdir()}
    assert hub.deleted == ["old.bin"]


def test_says_in_a_sentence_why_the_hub_refused(hub, folder):
    for token, endpoint in (("hf_wrong", hub.url), ("hf_right", "http://127.0.0.1:9")):
        with pytest.raises(InvalidRequestError) as refused:
            push_folder(folder, "me/mine", token=token, endpoint=endpoint)
        assert refused.value.field == "push_to_hub"
        assert "\n" not in refused.value.message
    assert hub.files == {}
