"""Messages between processes of a group, and the end of either side."""

from __future__ import annotations

import json
import socket
import threading
import time

import numpy as np
import pytest

from dps_tf.core import GroupLost, UserError
from dps_tf.training import Leader, Message, PeerConnection, ProcessRank
from dps_tf.training import group as groups
from dps_tf.training import rendezvous as joining
from dps_tf.training.group import Deadline, Follower

ARRAYS = (
    np.arange(6, dtype=np.float32).reshape(2, 3) / 7,
    np.array(-1, np.int64),
    np.zeros((0, 3), np.int8),
    np.asfortranarray(np.random.default_rng(0).normal(size=(3, 5))),
    np.array([np.nan, -0.0, np.inf], np.float32),
)


def tf_config(kind: str = "worker", index: int = 0, **jobs: list[str]) -> str:
    return json.dumps({"cluster": jobs, "task": {"type": kind, "index": index}})


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


@pytest.fixture(name="joined")
def _joined(ended):
    """A leader and its follower in one process."""
    one, other = pair()
    leader = Leader(None, Deadline(ended.append))
    leader.add(one)
    follower = Follower(None, Deadline(ended.append), other)
    yield leader, follower
    follower.deadline.is_told = leader.deadline.is_told = True
    one.close()
    other.close()


@pytest.fixture(name="ended")
def _ended():
    """Collects the exit codes with which a deadline would end this process."""
    return []


def received(follower: Follower) -> Message:
    message = follower.receive(10)
    assert message is not None
    return message


def test_arrays_arrive_bit_for_bit():
    heard: list[Message] = []
    ended = threading.Event()
    one, other = pair()
    sender = PeerConnection(one, heard.append, lambda: None)
    receiver = PeerConnection(other, heard.append, ended.set)
    sender.send("load", ARRAYS, step=3, point={"learning_rate": 0.1}, masks=None)
    sender.send("advance")
    sender.close()
    assert ended.wait(10) and receiver.ended.is_set()
    load, advance = heard
    assert load.values == {"step": 3, "point": {"learning_rate": 0.1}, "masks": None}
    for sent, found in zip(ARRAYS, load.arrays, strict=True):
        assert (found.dtype, found.shape) == (sent.dtype, sent.shape)
        assert found.tobytes() == sent.tobytes()
    assert advance == Message("advance", {}, ())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (tf_config(worker=["a:1", "b:2"]), ProcessRank(0, 2, "a:1")),
        (tf_config(index=1, worker=["a:1", "b:2"]), ProcessRank(1, 2, "a:1")),
        (tf_config(worker=["a:1", "b:2"], chief=["c:3"]), ProcessRank(1, 3, "c:3")),
        (
            tf_config("chief", worker=["a:1"], chief=["[::1]:3"]),
            ProcessRank(0, 2, "[::1]:3"),
        ),
    ],
)
def test_first_process_is_the_chief_or_the_first_worker(text, expected):
    assert ProcessRank.of_tf_config(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "nonsense",
        tf_config(index=2, worker=["a:1", "b:2"]),
        tf_config("ps", ps=["a:1"]),
        tf_config(worker=7),
    ],
)
def test_tf_config_without_a_place_is_one_sentence(text):
    with pytest.raises(UserError, match="TF_CONFIG is .* needs it to name") as refusal:
        ProcessRank.of_tf_config(text)
    assert "\n" not in str(refusal.value)


def test_calls_go_one_way_and_answers_and_signals_the_other(joined):
    leader, follower = joined
    stopped: list[str] = []
    leader.on_stop = stopped.append
    leader.send_call("prepare", specification={"a": 1})
    assert received(follower).values == {"specification": {"a": 1}}
    assert follower.receive(0.01) is None
    follower.send("stop", signal="SIGTERM")
    follower.send("prepared", lacks="")
    (answer,) = leader.answers(10)
    assert answer == Message("prepared", {"lacks": ""})
    assert stopped == ["SIGTERM"]
    assert leader.processes == 2


def test_end_of_the_leader_ends_even_who_is_stuck_in_a_step(joined, ended, monkeypatch):
    monkeypatch.setattr(groups, "_GRACE_SECONDS", 0.1)
    monkeypatch.setattr(groups, "_FAREWELL_SECONDS", 0.5)
    leader, follower = joined
    follower.deadline.is_told = True
    follower.deadline.code = 2
    leader.end(2)
    assert received(follower).values == {"code": 2}
    deadline = time.monotonic() + 10
    while not ended and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended == [2]


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_whoever_is_left_hears_at_once_and_ends_in_time(
    who, joined, ended, monkeypatch, capfd
):
    monkeypatch.setattr(groups, "_GRACE_SECONDS", 0.2)
    leader, follower = joined
    if who == "follower":
        follower._peer.close()
        with pytest.raises(GroupLost, match="another process of the group"):
            leader.answers(10)
        with pytest.raises(GroupLost, match="another process of the group"):
            leader.send_call("advance")
    else:
        leader._peers[0].close()
        for _ in range(2):
            with pytest.raises(GroupLost, match="another process of the group"):
                follower.receive(10)
    deadline = time.monotonic() + 10
    while len(ended) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended == [75, 75]  # both ends live in this process
    assert "error: another process of the group" in capfd.readouterr().err


def test_a_process_that_computes_other_bits_is_named(joined):
    leader, follower = joined
    follower.send("hello", process=1, about={"machine": "arm64", "numpy": "2.4"})
    with pytest.raises(UserError, match="process 1 .* machine is 'arm64' there and"):
        joining._check_alike(leader, {"machine": "x86_64", "numpy": "2.4"})
    follower.send("hello", process=1, about={"machine": "x86_64"})
    joining._check_alike(leader, {"machine": "x86_64"})


def test_strangers_are_turned_away():
    leader = Leader(None, Deadline(lambda code: None))
    token = bytes(range(16))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        stranger = socket.create_connection(address)
        stranger.sendall(bytes(16))
        silent = socket.create_connection(address)
        silent.close()
        friend = socket.create_connection(address)
        friend.sendall(token)
        joining._accept(leader, server, token, 1)
    assert leader.processes == 2
    assert stranger.recv(1) == b""
    for connection in (stranger, friend):
        connection.close()
    leader.end(0)
