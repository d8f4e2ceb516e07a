"""The processes that train the same batches: one leads, the others do as it does.

Collective operations have to be called by all processes of a group in one order, and
what is trained next is decided by one, from times and files that the others do not see.
So the first process tells the others each call before it makes it, over a connection
of its own to each.

The end of another process is heard of at once, however it comes, and the loss of its
machine or of the network within half a minute. Should a process go, all others end:
those that wait are told by their connection, those in a collective by TensorFlow or,
where that does not notice, by a deadline.

Nothing is unpickled: a message is JSON, with NumPy arrays behind it. What is no such
message, or cannot be acted on, is told and ends the connection: nobody waits for a
listener that has died.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf.core import VALIDATION, GroupLost, TrialState, UserError, on_one_line
from dps_tf.training.evaluation import Evaluation
from dps_tf.training.program import Advance, Program
from dps_tf.training.strategy import GONE

RUN_AGAIN = 75
_GRACE_SECONDS = 15.0
"""How long a process may take to keep states and leave once another one is gone."""
_FAREWELL_SECONDS = 5.0
_LENGTHS = struct.Struct(">IQ")  # of the JSON, and of the arrays behind it
_LONGEST_HEAD = 1 << 26  # bytes
_KINDS = "biuf"  # of arrays: truth values and numbers
_KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))  # seconds


@dataclass(frozen=True)
class Message:
    """What one process tells another: a call by name, JSON values, and arrays."""

    name: str
    values: dict[str, Any]
    arrays: tuple[np.ndarray, ...] = ()


class PeerConnection:
    """One end of a connection. One thread at a time may send.

    Attributes:
        ended: set once the other end is gone.
    """

    def __init__(
        self,
        connection: socket.socket,
        on_message: Callable[[Message], None],
        on_end: Callable[[], None],
    ):
        """Listens at once, and will close the connection.

        Args:
            connection: to the other process.
            on_message: is given each message, in a thread of its own.
            on_end: is called once in that thread, when the other end is gone.
        """
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
        self.ended = threading.Event()
        threading.Thread(
            target=self._listen, name="peer connection", daemon=True
        ).start()

    def send(self, name: str, arrays: Sequence[np.ndarray] = (), **values: Any) -> None:
        """Sends a message; GroupLost if the other end is gone."""
        forms = [[array.dtype.str, array.shape] for array in arrays]
        head = json.dumps([name, values, forms]).encode()
        body = b"".join(array.tobytes() for array in arrays)
        try:
            self._connection.sendall(_LENGTHS.pack(len(head), len(body)) + head + body)
        except OSError as error:
            raise GroupLost(GONE) from error

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
        self.ended.set()
        self.close()
        self._on_end()


def _read(connection: socket.socket, count: int) -> bytes:
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
    head, body = _LENGTHS.unpack(_read(connection, _LENGTHS.size))
    if head > _LONGEST_HEAD:
        raise ValueError(f"its head has {head:,} bytes")
    name, values, forms = json.loads(_read(connection, head))
    if not isinstance(name, str) or not isinstance(values, dict):
        raise ValueError("it has no name and values")
    known = [_form(*form) for form in forms]
    sizes = [dtype.itemsize * math.prod(shape) for dtype, shape in known]
    # Before they are read: a length that is wrong would be waited for.
    if body != sum(sizes):
        raise ValueError(f"its arrays do not have {body:,} bytes")
    arrays = (
        np.ndarray(shape, dtype, _read(connection, size))
        for (dtype, shape), size in zip(known, sizes, strict=True)
    )
    return Message(name, values, tuple(arrays))


def _form(kind: str, shape: Sequence[int]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Returns type and shape of an array, as a head tells them."""
    dtype = np.dtype(kind)
    if dtype.kind not in _KINDS or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"{kind!r}, {shape!r} is no array of numbers")
    return dtype, tuple(shape)


class Deadline:
    """Ends a process that stays after another one of its group has gone.

    Attributes:
        is_told: whether the user has been told; nothing is printed twice.
        code: with which it ends.
    """

    def __init__(self, end: Callable[[int], None] = os._exit):
        self.is_told = False
        self.code = RUN_AGAIN
        self._end = end
        self._lock = threading.Lock()
        self._is_running = False

    def start(self) -> None:
        """Gives the process _GRACE_SECONDS from now on; further calls do nothing."""
        with self._lock:
            if not self._is_running:
                self._is_running = True
                timer = threading.Timer(_GRACE_SECONDS, self._expire)
                timer.daemon = True
                timer.start()

    def _expire(self) -> None:
        if not self.is_told:
            print(f"error: {GONE}", file=sys.stderr, flush=True)
        self._end(self.code)


class Leader:
    """The first process: whatever all have to do together it tells the others first.

    Attributes:
        strategy: of the group.
        deadline: by which this process ends once another one has gone.
        on_stop: called with a signal's name when another process was asked to stop.
    """

    def __init__(self, strategy: tf.distribute.Strategy, deadline: Deadline):
        self.strategy = strategy
        self.deadline = deadline
        self.on_stop: Callable[[str], None] = lambda name: None
        self._peers: list[PeerConnection] = []
        self._answers: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._is_ending = False

    @property
    def processes(self) -> int:
        """How many train together, this one included."""
        return len(self._peers) + 1

    def add(self, connection: socket.socket) -> None:
        """Takes another process in."""
        self._peers.append(PeerConnection(connection, self._on_message, self._lose))

    def send_call(
        self, name: str, arrays: Sequence[np.ndarray] = (), **values: Any
    ) -> None:
        """Tells all others what to do before it is done; GroupLost if one is gone."""
        if any(peer.ended.is_set() for peer in self._peers):
            raise GroupLost(GONE)
        for peer in self._peers:
            peer.send(name, arrays, **values)

    def answers(self, seconds: float | None = None) -> list[Message]:
        """Returns one answer of each of the others, which have some seconds together.

        Raises:
            GroupLost: one of them is gone, or does not answer in time.
        """
        found: list[Message] = []
        until = None if seconds is None else time.monotonic() + seconds
        while len(found) < len(self._peers):
            left = None if until is None else max(0.0, until - time.monotonic())
            try:
                answer = self._answers.get(timeout=left)
            except queue.Empty:
                answer = None
            if answer is None:
                raise GroupLost(GONE)
            found.append(answer)
        return found

    def end(self, code: int) -> None:
        """Lets all others end with an exit code, and sees them leave."""
        self._is_ending = True
        for peer in self._peers:
            with contextlib.suppress(GroupLost):
                peer.send("end", code=code)
        until = time.monotonic() + _FAREWELL_SECONDS
        for peer in self._peers:
            peer.ended.wait(max(0.0, until - time.monotonic()))
            peer.close()

    def _on_message(self, message: Message) -> None:
        if message.name == "stop":
            self.on_stop(str(message.values["signal"]))
        else:
            self._answers.put(message)

    def _lose(self) -> None:
        self._answers.put(None)
        if not self._is_ending:
            self.deadline.start()


class Follower:
    """Any other process: does what it is told. Its attributes are those of `Leader`."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        deadline: Deadline,
        connection: socket.socket,
    ):
        self.strategy = strategy
        self.deadline = deadline
        self._inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._peer = PeerConnection(connection, self._on_message, self._lose)

    def send(self, name: str, **values: Any) -> None:
        """Tells the leader something."""
        self._peer.send(name, **values)

    def receive(self, seconds: float) -> Message | None:
        """Returns the next call, or None if there is none within some seconds.

        Raises:
            GroupLost: the leader is gone without having ended the group.
        """
        try:
            message = self._inbox.get(timeout=seconds)
        except queue.Empty:
            return None
        if message is None:
            self._inbox.put(None)
            raise GroupLost(GONE)
        return message

    def _on_message(self, message: Message) -> None:
        if message.name == "end":
            # It may be in a step that the leader has given up.
            self.deadline.start()
        self._inbox.put(message)

    def _lose(self) -> None:
        self._inbox.put(None)
        self.deadline.start()


class CoordinatedProgram(Program):
    """The leader's program; `follow` makes the same calls on those of the others."""

    def __init__(self, leader: Leader, *arguments: Any, **keywords: Any):
        """Takes the arguments of `Program` behind the leader."""
        self._leader = leader
        super().__init__(*arguments, **keywords)

    def load(
        self,
        state: TrialState,
        point: Mapping[str, float],
        masks: Sequence[np.ndarray] | None = None,
        seed: int = 0,
    ) -> None:
        """Makes the program that of one trial, everywhere."""
        arrays = [*state.arrays, *(masks or ())]
        self._leader.send_call(
            "load",
            [np.asarray(array) for array in arrays],
            step=int(state.step),
            point=dict(point),
            masks=None if masks is None else len(masks),
            seed=seed,
        )
        super().load(state, point, masks, seed)

    def advance(self, indices: np.ndarray) -> Advance:
        """Trains on the given batches, everywhere."""
        self._leader.send_call("advance", [indices])
        with _together():
            return super().advance(indices)

    def evaluate(self, split: str = VALIDATION) -> Evaluation:
        """Evaluates, everywhere; returns what was found here."""
        self._leader.send_call("evaluate", split=split)
        with _together():
            return super().evaluate(split)


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """Raises GroupLost where a call fails that the others may wait for, for ever."""
    try:
        yield
    except GroupLost:
        raise
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise GroupLost(
            "a step that the whole group makes failed in its first process "
            f"({reason}): start all of them again."
        ) from error


def follow(program: Program, call: Message) -> None:
    """Makes a call that the leader has told; UserError if it is none of a program."""
    if call.name == "load":
        values, masks = call.values, call.values["masks"]
        end = len(call.arrays) - (masks or 0)
        program.load(
            TrialState(values["step"], call.arrays[:end]),
            values["point"],
            None if masks is None else call.arrays[end:],
            values["seed"],
        )
    elif call.name == "advance":
        program.advance(call.arrays[0])
    elif call.name == "evaluate":
        program.evaluate(call.values["split"])
    else:
        raise UserError(f"the first process of the group asks for {call.name!r}.")
