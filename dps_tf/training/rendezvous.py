"""How the processes of a group find each other.

The first process listens on a port of its own; port and token go round by a collective
of the group itself, so TF_CONFIG is all that a user gives.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import selectors
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from dps_tf.core import GroupLost, UserError
from dps_tf.training import strategy as strategies
from dps_tf.training.group import Deadline, Follower, Leader
from dps_tf.training.strategy import GONE

_TOKEN_BYTES = 16
_JOIN_SECONDS = 60.0
"""Longest wait for all processes of a group, once they have been heard of."""
_STRANGERS = 64
"""Connections without a token that are waited for at a time."""


@dataclass(frozen=True)
class ProcessRank:
    """A process in its group: its number from 0, how many there are.

    `first`: address of the first one, 'host:port'.
    """

    number: int
    processes: int
    first: str

    @classmethod
    def of_tf_config(cls, text: str) -> ProcessRank:
        """Returns the rank that a TF_CONFIG describes; UserError if it does not."""
        try:
            config = json.loads(text)
            cluster, task = config["cluster"], config["task"]
            jobs = [(job, list(cluster.get(job, []))) for job in ("chief", "worker")]
            addresses = [(j, i, a) for j, known in jobs for i, a in enumerate(known)]
            positions = [(job, index) for job, index, _ in addresses]
            number = positions.index((task["type"], int(task["index"])))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"TF_CONFIG is {text!r}, and --strategy=multi_worker_mirrored needs "
                "it to name the group and this process in it: {'cluster': {'worker': "
                "['host1:port', 'host2:port']}, 'task': {'type': 'worker', 'index': "
                "0}}, as JSON."
            ) from error
        return cls(number, len(addresses), addresses[0][2])


def join(about: Mapping[str, str]) -> Leader | Follower:
    """Returns this process's part in the group of TF_CONFIG, once all are there.

    To be called before anything else of the process uses TensorFlow's devices. While
    it waits for the others TensorFlow hears no signal but SIGKILL; nothing has begun.
    `about`: builds and instruction set, which have to be the same everywhere.

    Raises:
        UserError: TF_CONFIG does not describe a group, or one of it is of another kind.
    """
    rank = ProcessRank.of_tf_config(os.environ.get("TF_CONFIG", ""))
    strategy, deadline = strategies.build("multi_worker_mirrored"), Deadline()
    server = _server(rank) if rank.number == 0 else None
    with strategies.whole_group(strategy):
        port, token = _agreed(strategy, server)
    if server is None:
        host = rank.first.rpartition(":")[0].strip("[]")
        connection = socket.create_connection((host, port), _JOIN_SECONDS)
        connection.sendall(token)
        follower = Follower(strategy, deadline, connection)
        follower.send("hello", process=rank.number, about=dict(about))
        return follower
    leader = Leader(strategy, deadline)
    with server:
        _accept(leader, server, token, rank.processes - 1)
    _check_alike(leader, about)
    return leader


def _server(rank: ProcessRank) -> socket.socket:
    """Returns what listens on a free port of the address that TF_CONFIG gives."""
    host = rank.first.rpartition(":")[0].strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, 0), family=family)
    except OSError as error:
        # As behind an address translation.
        print(
            f"note: {host} is no address of this machine ({error.strerror}): the first "
            "process listens on all of its addresses.",
            file=sys.stderr,
        )
        return socket.create_server(("", 0), family=family)


def _agreed(
    strategy: tf.distribute.Strategy, server: socket.socket | None
) -> tuple[int, bytes]:
    """Returns (port, token) of the first process, in all processes alike."""
    words = np.zeros(1 + _TOKEN_BYTES, np.float32)  # exact for such small numbers
    if server is not None:
        words[0] = server.getsockname()[1]
        words[1:] = np.frombuffer(secrets.token_bytes(_TOKEN_BYTES), np.uint8)

    @tf.function(autograph=False)
    def total() -> tf.Tensor:
        def share() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            is_first = tf.equal(context.replica_id_in_sync_group, 0)
            return tf.where(is_first, words, np.zeros_like(words))

        return strategy.reduce(
            tf.distribute.ReduceOp.SUM, strategy.run(share), axis=None
        )

    port, *token = total().numpy().astype(int)
    return int(port), bytes(int(byte) for byte in token)


def _accept(leader: Leader, server: socket.socket, token: bytes, count: int) -> None:
    """Takes the others in; whoever does not know the token is turned away."""
    # All are heard at once, so that a connection that stays silent delays nobody.
    until = time.monotonic() + _JOIN_SECONDS
    server.setblocking(False)
    heard: dict[socket.socket, bytes] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(server, selectors.EVENT_READ)
        try:
            while leader.processes <= count:
                left = until - time.monotonic()
                if left <= 0:
                    raise GroupLost(GONE)
                for key, _ in selector.select(left):
                    connection = key.fileobj
                    assert isinstance(connection, socket.socket)
                    if connection is server:
                        stranger = _stranger(server)
                        if stranger is not None and len(heard) < _STRANGERS:
                            selector.register(stranger, selectors.EVENT_READ)
                            heard[stranger] = b""
                        elif stranger is not None:
                            stranger.close()
                    else:
                        _hear(leader, selector, connection, heard, token)
        finally:
            for stranger in heard:
                stranger.close()


def _stranger(server: socket.socket) -> socket.socket | None:
    try:
        connection, _ = server.accept()
    except OSError:
        return None  # gone again
    connection.setblocking(False)
    return connection


def _hear(
    leader: Leader,
    selector: selectors.BaseSelector,
    stranger: socket.socket,
    heard: dict[socket.socket, bytes],
    token: bytes,
) -> None:
    """Takes in what a stranger says; it is one of the group once it knows the token."""
    try:
        said = stranger.recv(len(token) - len(heard[stranger]))
    except OSError:
        said = b""
    heard[stranger] += said
    if said and len(heard[stranger]) < len(token):
        return
    selector.unregister(stranger)
    if hmac.compare_digest(heard.pop(stranger), token):
        leader.add(stranger)
    else:
        stranger.close()


def _check_alike(leader: Leader, about: Mapping[str, str]) -> None:
    """Raises UserError unless all processes compute the same bits."""
    # They decide by their own results how far an evaluation goes.
    for hello in leader.answers(_JOIN_SECONDS):
        theirs = hello.values.get("about")
        if hello.name != "hello" or not isinstance(theirs, dict):
            raise UserError(
                "another process of the group does not say what it is: all of them "
                "need one version of this package."
            )
        differences = [
            f"{name} is {theirs.get(name)!r} there and {value!r} in the first process"
            for name, value in about.items()
            if theirs.get(name) != value
        ]
        if differences:
            raise UserError(
                f"process {hello.values.get('process')} of the group computes other "
                f"bits: {'; '.join(differences)}: take machines of one kind with one "
                "installation."
            )
