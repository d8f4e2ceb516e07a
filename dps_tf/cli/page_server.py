"""A server of a folder to browsers on this machine, for pages that reload."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dps_tf.core import UserError


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder to browsers on this machine, and prints nothing."""

    def do_GET(self) -> None:
        """Answers a request for this address and a path inside of the folder."""
        # A foreign page whose host name was made to lead here must not read reports.
        name = self.headers.get("Host", "").rpartition(":")[0]
        if name not in ("127.0.0.1", "localhost"):
            self.send_error(403)
        elif self._is_inside(self.translate_path(self.path)):
            super().do_GET()
        else:
            self.send_error(404)

    do_HEAD = do_GET  # noqa: N815 (named by the library)

    def _is_inside(self, path: str) -> bool:
        """Returns whether a path leads to a file of the folder, through no link."""
        try:
            # Links are resolved in both: the path of the folder may hold one.
            folder = Path(self.directory).resolve()
            within = Path(path).relative_to(self.directory)
            return Path(path).resolve() == folder / within
        except ValueError:
            # The path holds a NUL, which no name of a file does.
            return False

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Prints nothing."""


@contextmanager
def served(folder: Path, port: int = 0) -> Iterator[str]:
    """Serves a folder on 127.0.0.1 while the block runs; yields the address.

    A missing folder is made. Port 0 stands for any free one.

    Raises:
        UserError: the port is taken.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handler = functools.partial(_Handler, directory=str(folder))
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise UserError(
            f"port {port} cannot be used ({error.strerror}): name another --port, or "
            "none for a free one."
        ) from error
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
