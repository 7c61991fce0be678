"""A chat completions API on a real socket, which answers what a test says."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ChatServer(ThreadingHTTPServer):
    """Answers with `says(messages)`: a text, a status, or None to stay silent until the server closes."""

    daemon_threads = True

    def __init__(self, says):
        self.asked = []
        """Path, key and body of each request."""
        self._closing = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.asked.append((self.path, self.headers["Authorization"], body))
                said = says(body["messages"])
                if said is None:
                    server._closing.wait()
                    return
                status = said if isinstance(said, int) else 200
                answer = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def origin(self):
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def url(self):
        return f"{self.origin}/v1"

    def __exit__(self, *_):
        self._closing.set()
        self.shutdown()
        self.server_close()
