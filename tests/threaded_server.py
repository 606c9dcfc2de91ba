"""An HTTP server of a test's own, served in a thread for as long as the test needs it."""

from __future__ import annotations

import threading
from http.server import ThreadingHTTPServer
from typing import Self


class ThreadedServer:
    """A context in which the server answers."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        server.daemon_threads = True
        self.server = server
        self.port = int(server.server_address[1])
        self._thread = threading.Thread(target=server.serve_forever, args=(0.02,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.server.shutdown()
        self._thread.join(10)
        self.server.server_close()
