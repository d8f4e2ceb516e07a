"""One connection between two processes of a group: messages, and who is still there.

The end of the other process is heard of at once, however it comes, and the loss of its
machine or of the network within half a minute. Nothing is unpickled: a message is JSON,
with NumPy arrays behind it.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dps_tf.core.errors import GroupLost

GONE = (
    "another process of the group that TF_CONFIG names is gone: start all of them "
    "again, and training goes on from the states that were kept."
)
_LENGTHS = struct.Struct(">IQ")  # of the JSON, and of the arrays behind it
_KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))  # seconds


@dataclass(frozen=True)
class Message:
    """What one process tells another.

    Attributes:
        name: what is to be done with it.
        values: as JSON knows them.
        arrays: of numbers or truth values.
    """

    name: str
    values: dict[str, Any]
    arrays: tuple[np.ndarray, ...] = ()


class PeerConnection:
    """One end of a connection. One thread at a time may send.

    Args:
        connection: to the other process; which it closes it.
        on_message: is given each message, in a thread of its own.
        on_end: is called once in that thread, when the other end is gone.
    """

    def __init__(
        self,
        connection: socket.socket,
        on_message: Callable[[Message], None],
        on_end: Callable[[], None],
    ):
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):  # not on every system
                option = getattr(socket, name)
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
        self._connection = connection
        self._on_message = on_message
        self._on_end = on_end
        self._ended = threading.Event()
        threading.Thread(
            target=self._listen, name="peer connection", daemon=True
        ).start()

    @property
    def is_open(self) -> bool:
        """Whether the other end was there when last heard of."""
        return not self._ended.is_set()

    def send(self, name: str, arrays: Sequence[np.ndarray] = (), **values: Any) -> None:
        """Sends a message.

        Raises:
            GroupLost: the other end is gone.
        """
        forms = [[array.dtype.str, array.shape] for array in arrays]
        head = json.dumps([name, values, forms]).encode()
        body = b"".join(array.tobytes() for array in arrays)
        try:
            self._connection.sendall(_LENGTHS.pack(len(head), len(body)) + head + body)
        except OSError as error:
            raise GroupLost(GONE) from error

    def wait_for_end(self, seconds: float) -> None:
        """Waits until the other end is gone, at most some seconds."""
        self._ended.wait(seconds)

    def close(self) -> None:
        """Ends the connection; the other end hears of it."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _listen(self) -> None:
        try:
            while True:
                head, body = _LENGTHS.unpack(read(self._connection, _LENGTHS.size))
                name, values, forms = json.loads(read(self._connection, head))
                arrays = _arrays(forms, read(self._connection, body))
                self._on_message(Message(name, values, arrays))
        except OSError:
            self._ended.set()
            self.close()
            self._on_end()


def read(connection: socket.socket, count: int) -> bytes:
    """Returns exactly so many bytes; OSError if the connection ends before them."""
    parts = []
    while count:
        part = connection.recv(min(count, 1 << 20))
        if not part:
            raise ConnectionError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _arrays(forms: Sequence[Any], body: bytes) -> tuple[np.ndarray, ...]:
    arrays, start = [], 0
    for kind, shape in forms:
        dtype = np.dtype(kind)
        count = int(np.prod(shape, dtype=np.int64))
        found = np.frombuffer(body, dtype, count, start).reshape(shape)
        arrays.append(found)
        start += found.nbytes
    return tuple(arrays)
