"""Starts the processes of a group that shares batches, over loopback."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Sequence

from tests import interpreter

PROCESSES = 2


def free_ports(count: int) -> list[int]:
    """Returns ports of loopback at which nobody listens."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [held.getsockname()[1] for held in sockets]
    for held in sockets:
        held.close()
    return ports


class Member:
    """A program in one process of a group.

    Attributes:
        process: that runs it.
    """

    def __init__(self, words: Sequence[str], tf_config: object) -> None:
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - until it ends
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = interpreter.start(
            words,
            env={**os.environ, "TF_CONFIG": json.dumps(tf_config)},
            stdout=self._output,
            stderr=self._errors,
        )

    def end(self) -> tuple[int, str, str]:
        """Waits; returns exit code, output and errors."""
        code = self.process.wait(500)
        with self._output as output, self._errors as errors:
            output.seek(0)
            errors.seek(0)
            return code, output.read(), errors.read()


def start_group(words: Sequence[str]) -> list[Member]:
    """Starts the same program in all processes of a group."""
    workers = [f"127.0.0.1:{port}" for port in free_ports(PROCESSES)]
    tasks = [{"type": "worker", "index": index} for index in range(PROCESSES)]
    return [Member(words, {"cluster": {"worker": workers}, "task": t}) for t in tasks]


def ends(group: Sequence[Member]) -> list[tuple[int, str, str]]:
    """Waits for all; returns exit code, output and errors of each."""
    return [member.end() for member in group]
