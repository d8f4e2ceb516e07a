"""A local stand-in for Google Cloud Storage: puts with preconditions, and reads.

It speaks as much of the JSON interface as claims need, over HTTP, so that the real
client is tested: multipart uploads with `ifGenerationMatch`, and downloads.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

BUCKET = "bucket"


class Emulator(ThreadingHTTPServer):
    """The server; one bucket, whose objects are in memory.

    Attributes:
        objects: content by name.
        refuse: called before each answer with (method, name); a status other than 0 is
            answered instead, and 'lost' closes the connection after the work is done.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.refuse: Callable[[str, str], int | str] = lambda method, name: 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def emulator() -> Iterator[Emulator]:
    """Runs a server for the time of the block."""
    server = Emulator()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Emulator
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:  # noqa: N802 - called by the server
        url = urlsplit(self.path)
        assert url.path.startswith("/upload/storage/v1/b/")
        bucket = url.path.split("/")[5]
        query = parse_qs(url.query)
        assert query["uploadType"] == ["multipart"]
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        about, content = message_from_bytes(head + body).get_payload()
        name = json.loads(about.get_payload())["name"]
        data = content.get_payload(decode=True)
        refusal = self.server.refuse("POST", name)
        if isinstance(refusal, int) and refusal:
            self._answer(refusal, {"error": {"message": "refused by the test"}})
            return
        if bucket != BUCKET:
            self._answer(404, {"error": {"message": "no bucket"}})
            return
        with self.server.lock:
            is_there = name in self.server.objects
            if query.get("ifGenerationMatch") == ["0"] and is_there:
                self._answer(412, {"error": {"message": "conditionNotMet"}})
                return
            self.server.objects[name] = data
        if refusal == "lost":
            self.close_connection = True
            self.connection.close()
            return
        self._answer(200, {"name": name, "bucket": bucket, "generation": "1"})

    def do_GET(self) -> None:  # noqa: N802 - called by the server
        url = urlsplit(self.path)
        name = unquote(url.path.split("/o/")[1])
        with self.server.lock:
            data = self.server.objects.get(name)
        if data is None:
            self._answer(404, {"error": {"message": "no object"}})
        else:
            self._send(200, data, "application/octet-stream")

    def _answer(self, status: int, content: dict[str, object]) -> None:
        self._send(status, json.dumps(content).encode(), "application/json")

    def _send(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Says nothing."""
