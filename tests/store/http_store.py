"""A stand-in for the object stores of Google, Amazon and Azure, over HTTP.

It knows as much of their protocols as creating an object needs, which is nearly the
same in all three: puts that may ask that there is no object yet, and reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class HttpStore(ThreadingHTTPServer):
    """The server.

    Attributes:
        objects: content by path.
        heeds: whether it heeds that an object must not exist yet.
        before_put: called with the path; a status other than 200 refuses the put.
        after_put: likewise, when the object is made: an answer that is lost.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.heeds = True
        self.before_put: Callable[[str], int] = lambda path: 200
        self.after_put: Callable[[str], int] = lambda path: 200
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def http_store() -> Iterator[HttpStore]:
    """Runs a server for the time of the block."""
    server = HttpStore()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: HttpStore
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:  # noqa: N802 - called by the server
        data = self.rfile.read(int(self.headers["Content-Length"]))
        status = self.server.before_put(self.path)
        with self.server.lock:
            if status == 200 and self._is_forbidden():
                status = 412
            if status == 200:
                self.server.objects[self.path] = data
                status = self.server.after_put(self.path)
        self._answer(status)

    def _is_forbidden(self) -> bool:
        """Returns whether an object is there that must not be."""
        must_be_new = (
            self.headers.get("If-None-Match") == "*"
            or self.headers.get("x-goog-if-generation-match") == "0"
        )
        return must_be_new and self.server.heeds and self.path in self.server.objects

    def do_GET(self) -> None:  # noqa: N802 - called by the server
        data = self.server.objects.get(self.path)
        self._answer(404 if data is None else 200, data or b"")

    def _answer(self, status: int, data: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("ETag", '"1"')
        self.send_header("Last-Modified", "Tue, 24 Nov 2026 12:00:00 GMT")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Says nothing."""
