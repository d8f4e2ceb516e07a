"""The processes that train the same batches: one leads, the others do as it does.

Collective operations have to be called by all processes of a group in one order, and
what is trained next is decided by one, from times and files that the others do not see.
So the first process tells the others each call before it makes it, over a connection
of its own to each.

Should a process go, all others end: those that wait are told by their connection, those
in a collective by TensorFlow or, where that does not notice, by a deadline.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf.core.errors import GroupLost
from dps_tf.training.peer_connection import GONE, Message, PeerConnection

RUN_AGAIN = 75
_GRACE_SECONDS = 15.0
"""How long a process may take to keep states and leave once another one is gone."""
_FAREWELL_SECONDS = 5.0


class Deadline:
    """Ends a process that stays after another one of its group has gone.

    Attributes:
        is_told: whether the user has been told; nothing is printed twice.
        code: with which it ends.
    """

    def __init__(self, end: Callable[[int], None] = os._exit):
        """`end`: called with the exit code."""
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
        processes: in the group, this one included.
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
        """How many train together."""
        return len(self._peers) + 1

    def add(self, connection: socket.socket) -> None:
        """Takes another process in."""
        self._peers.append(PeerConnection(connection, self._on_message, self._lose))

    def send_call(
        self, name: str, arrays: Sequence[np.ndarray] = (), **values: Any
    ) -> None:
        """Tells all others what to do, before it is done here.

        Raises:
            GroupLost: one of them is gone.
        """
        if not all(peer.is_open for peer in self._peers):
            raise GroupLost(GONE)
        for peer in self._peers:
            peer.send(name, arrays, **values)

    def answers(self, seconds: float | None = None) -> list[Message]:
        """Returns one answer of each of the others.

        Args:
            seconds: for all of them together.

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
            try:
                peer.send("end", code=code)
            except GroupLost:
                continue
        until = time.monotonic() + _FAREWELL_SECONDS
        for peer in self._peers:
            peer.wait_for_end(max(0.0, until - time.monotonic()))
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
    """Any other process: does what it is told.

    Attributes:
        strategy: of the group.
    """

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
