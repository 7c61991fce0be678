"""A wire between clients and a server that a test can cut."""

import contextlib
import re
import socket
import threading


class Relay:
    """A wire between client and server that can be cut at the worst moment.

    Passes bytes on, until it is told to swallow the next answer, or is unplugged.
    """

    def __init__(self, url):
        self._target = (re.search(r"//([\d.]+):", url)[1], int(url.rpartition(":")[2]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.is_plugged = True
        self.url = f"{url.partition(':')[0]}://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self.swallow_next_answer = False
        self._pairs = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        """Cut every wire there is at the moment."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def unplug(self):
        """Be for clients as if no server were there."""
        self.is_plugged = False
        self.cut()

    def plug(self):
        self.is_plugged = True

    def close(self):
        with contextlib.suppress(OSError):
            # Closing alone would leave it to whoever waits in `accept`.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if not self.is_plugged:
                    client.close()
                    continue
                server = socket.create_connection(self._target)
                self.connections += 1
                self._pairs.append((client, server))
                threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, source, sink, answers):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if answers and self.swallow_next_answer:
                    self.swallow_next_answer = False
                    self.cut()
                    return
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
