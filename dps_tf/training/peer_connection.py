"""One connection between two processes of a group: messages, and who is still there.

The end of the other process is heard of at once, however it comes, and the loss of its
machine or of the network within half a minute. Nothing is unpickled: a message is JSON,
with NumPy arrays behind it. What is no such message, or cannot be acted on, is told and
ends the connection: nobody waits for a listener that has died.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dps_tf.core.errors import GroupLost, on_one_line

GONE = (
    "another process of the group that TF_CONFIG names is gone: start all of them "
    "again, and training goes on from the states that were kept."
)
_LENGTHS = struct.Struct(">IQ")  # of the JSON, and of the arrays behind it
_LONGEST_HEAD = 1 << 26  # bytes
_KINDS = "biuf"  # of arrays: truth values and numbers
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
                self._on_message(_message(self._connection))
        except OSError:
            pass
        except Exception as error:  # of whatever kind: the others must hear of the end
            print(
                "error: a message from another process of the group cannot be used "
                f"({type(error).__name__}: {on_one_line(error)}): all of them need "
                "one version of this package.",
                file=sys.stderr,
                flush=True,
            )
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


def _message(connection: socket.socket) -> Message:
    """Returns the next message; ValueError for what is none."""
    head, body = _LENGTHS.unpack(read(connection, _LENGTHS.size))
    if head > _LONGEST_HEAD:
        raise ValueError(f"its head has {head:,} bytes")
    name, values, forms = json.loads(read(connection, head))
    if not isinstance(name, str) or not isinstance(values, dict):
        raise ValueError("it has no name and values")
    shapes = [_form(*form) for form in forms]
    # Before they are read: a length that is wrong would be waited for.
    if body != sum(dtype.itemsize * math.prod(shape) for dtype, shape in shapes):
        raise ValueError(f"its arrays do not have {body:,} bytes")
    return Message(name, values, _arrays(shapes, read(connection, body)))


def _form(kind: str, shape: Sequence[int]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Returns type and shape of an array, as a head tells them."""
    dtype = np.dtype(kind)
    if dtype.kind not in _KINDS or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"{kind!r}, {shape!r} is no array of numbers")
    return dtype, tuple(shape)


def _arrays(
    forms: Sequence[tuple[np.dtype[Any], tuple[int, ...]]], body: bytes
) -> tuple[np.ndarray, ...]:
    arrays, start = [], 0
    for dtype, shape in forms:
        found = np.frombuffer(body, dtype, math.prod(shape), start).reshape(shape)
        arrays.append(found)
        start += found.nbytes
    return tuple(arrays)
