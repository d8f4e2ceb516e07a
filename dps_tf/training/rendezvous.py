"""How the processes of a group find each other.

The first process listens on a port of its own; port and token go round by a collective
of the group itself, so TF_CONFIG is all that a user gives.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from dps_tf.core.errors import GroupLost, UserError
from dps_tf.training import strategy as strategies
from dps_tf.training.group import Deadline, Follower, Leader
from dps_tf.training.peer_connection import GONE, read

_TOKEN_BYTES = 16
_TOKEN_SECONDS = 5.0
_JOIN_SECONDS = 60.0
"""Longest wait for a process that has been heard of already."""


@dataclass(frozen=True)
class ProcessRank:
    """A process in its group.

    Attributes:
        number: of the process, the first one is 0.
        processes: in the group.
        first: address of the first one, 'host:port'.
    """

    number: int
    processes: int
    first: str

    @classmethod
    def of_tf_config(cls, text: str) -> ProcessRank:
        """Returns the rank that the value of TF_CONFIG describes.

        Raises:
            UserError: it does not describe one.
        """
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

    Args:
        about: builds and instruction set, which have to be the same everywhere.

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
    """Returns what listens on a free port, on the loopback interface if the group is.

    The host of the first process may be a name that is none of its own interfaces'.
    """
    host = rank.first.rpartition(":")[0].strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    is_local = host in ("localhost", "::1") or host.startswith("127.")
    return socket.create_server((host if is_local else "", 0), family=family)


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
    server.settimeout(_JOIN_SECONDS)
    while leader.processes <= count:
        try:
            connection, _ = server.accept()
        except TimeoutError as error:
            raise GroupLost(GONE) from error
        connection.settimeout(_TOKEN_SECONDS)
        try:
            is_known = hmac.compare_digest(read(connection, len(token)), token)
        except OSError:
            is_known = False
        if is_known:
            leader.add(connection)
        else:
            connection.close()


def _check_alike(leader: Leader, about: Mapping[str, str]) -> None:
    """Raises UserError unless all processes compute the same bits.

    They decide by their own results how far an evaluation goes.
    """
    for hello in leader.answers(_JOIN_SECONDS):
        theirs = hello.values["about"]
        differences = [
            f"{name} is {theirs.get(name)!r} there and {value!r} in the first process"
            for name, value in about.items()
            if theirs.get(name) != value
        ]
        if differences:
            raise UserError(
                f"process {hello.values['process']} of the group computes other bits: "
                f"{'; '.join(differences)}: take machines of one kind with one "
                "installation."
            )
