"""The channel of a group under attack: malformed messages, silence, slow strangers."""

from __future__ import annotations

import json
import queue
import socket
import struct
import threading
import time

import numpy as np
import pytest

from dps_tf.core import GroupLost
from dps_tf.training import Message, PeerConnection, ProcessRank, rendezvous

pytestmark = pytest.mark.fault

TOKEN = b"0123456789abcdef"


def framed(head: object, body: bytes = b"", lengths: tuple | None = None) -> bytes:
    data = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack(">IQ", *(lengths or (len(data), len(body)))) + data + body


MALFORMED = {
    "no JSON": framed(b"{"),
    "no text": framed(b"\xff\xfe"),
    "a number": framed(7),
    "too few parts": framed(["go", {}]),
    "too many parts": framed(["go", {}, [], 1]),
    "a name that is none": framed([7, {}, []]),
    "values that are none": framed(["go", 7, []]),
    "an object as array": framed(["go", {}, [["|O", [1]]]], b"12345678"),
    "an unknown type": framed(["go", {}, [["?!", [1]]]], b"1"),
    "a negative shape": framed(["go", {}, [["<f4", [-1]]]], b"1234"),
    "a shape of text": framed(["go", {}, [["<f4", ["1"]]]], b"1234"),
    "an array that is longer": framed(["go", {}, [["<f4", [2]]]], b"1234"),
    "an endless body": framed(["go", {}, []], lengths=(12, 2**60)),
    "an endless head": framed(b"", lengths=(2**32 - 1, 0)),
    "depth": framed(b"[" * 100_000),
}


class End:
    """One end of a connection, with what it has heard."""

    def __init__(self, connection: socket.socket, on_message=None) -> None:
        self.heard: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.ended = threading.Event()
        on_message = on_message or self.heard.put
        self.peer = PeerConnection(connection, on_message, self.ended.set)


@pytest.fixture
def pair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = socket.create_connection(server.getsockname())
        there, _ = server.accept()
    with here, there:
        yield here, there


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_message_is_told_and_ends_the_connection(name, pair, capfd):
    here, there = pair
    end = End(here)
    there.sendall(framed(["go", {"n": 1}, [["<f4", [2]]]], np.ones(2, "<f4").tobytes()))
    assert end.heard.get(timeout=5).arrays[0].tolist() == [1, 1]
    there.sendall(MALFORMED[name])
    assert end.ended.wait(5), "its listener has died, and nobody was told"
    assert end.peer.ended.is_set()
    with pytest.raises(GroupLost):
        for _ in range(2):
            end.peer.send("more")
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "cannot be used" in said


def test_a_message_that_cannot_be_acted_on_ends_the_connection(pair, capfd):
    here, there = pair
    end = End(here, on_message=lambda message: message.values["signal"])
    there.sendall(framed(["stop", {}, []]))
    assert end.ended.wait(5)
    assert "KeyError" in capfd.readouterr().err


class Taken:
    """Stands in for a leader that is joined."""

    def __init__(self) -> None:
        self.connections: list[socket.socket] = []

    @property
    def processes(self) -> int:
        return len(self.connections) + 1

    def add(self, connection: socket.socket) -> None:
        self.connections.append(connection)


def test_silent_and_wrong_strangers_do_not_keep_the_group_apart():
    leader = Taken()
    with rendezvous._server(ProcessRank(0, 3, "127.0.0.1:1")) as server:
        address = server.getsockname()
        strangers = [socket.create_connection(address) for _ in range(5)]
        strangers[0].sendall(b"x" * 16)
        strangers[1].sendall(TOKEN[:8])
        strangers[2].close()
        members = [socket.create_connection(address) for _ in range(2)]
        for member in members:
            # However it is cut on the way.
            member.sendall(TOKEN[:5])
        sending = threading.Timer(
            0.2, lambda: [member.sendall(TOKEN[5:]) for member in members]
        )
        sending.start()
        begun = time.monotonic()
        rendezvous._accept(leader, server, TOKEN, 2)
        assert time.monotonic() - begun < 5
    theirs = {member.getsockname() for member in members}
    assert {taken.getpeername() for taken in leader.connections} == theirs
    for connection in [*strangers, *members, *leader.connections]:
        connection.close()


def test_the_whole_handshake_has_one_limit(monkeypatch):
    monkeypatch.setattr(rendezvous, "_JOIN_SECONDS", 0.6)
    with rendezvous._server(ProcessRank(0, 2, "127.0.0.1:1")) as server:
        dripping = socket.create_connection(server.getsockname())
        stop = threading.Event()

        def drip() -> None:
            for place in range(16):
                if stop.wait(0.15):
                    return
                dripping.sendall(TOKEN[place : place + 1])

        thread = threading.Thread(target=drip)
        thread.start()
        begun = time.monotonic()
        with pytest.raises(GroupLost):
            rendezvous._accept(Taken(), server, TOKEN, 1)
        assert time.monotonic() - begun < 1.5
        stop.set()
        thread.join()
        dripping.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
def test_the_first_process_listens_on_the_address_it_was_given(host, capfd):
    with rendezvous._server(ProcessRank(0, 2, f"{host}:7")) as server:
        assert server.getsockname()[0] == socket.gethostbyname(host)
    assert capfd.readouterr().err == ""


def test_an_address_of_another_machine_is_told(capfd):
    # TEST-NET-1 of RFC 5737, which nobody has.
    with rendezvous._server(ProcessRank(0, 2, "192.0.2.1:7")) as server:
        assert server.getsockname()[0] == "0.0.0.0"
    assert "192.0.2.1 is no address of this machine" in capfd.readouterr().err
