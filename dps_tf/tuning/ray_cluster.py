"""The slots of a Ray cluster, made and lost as its nodes come and go.

Each slot is an actor, that is a process of its own; there is one for each processor,
GPU or TPU host of each node. Nodes may come, go and fall silent at any time.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dps_tf.core import SlotLost, UserError, duration, processors
from dps_tf.tuning.cluster_slots import RemoteSlot, SlotPool
from dps_tf.tuning.interruption import SIGNALS, StopRequest
from dps_tf.tuning.options import LOOPBACK_ONLY, Options

_LOOK_SECONDS = 2.0
"""Seconds between two looks at the nodes of the cluster."""
PATIENCE_SECONDS = 60.0
"""Seconds that a cluster may have no slot before the run says so, or ends."""
_LISTENING_SECONDS = 30.0
"""Seconds that the head node of a cluster may take to listen."""
_OBJECT_STORE_BYTES = 256 * 2**20
"""Size of the object store of a Ray that is started here.

It is small, as states pass through it one at a time.
"""
_LOOPBACK = "127.0.0.1"
_ENDED = "the end of the Ray that was started here"
_NICENESS = "RAY_worker_niceness"
"""Variable of Ray; by default workers run at 15, behind everything else."""
_UNREACHABLE = (ray.exceptions.RayError, ConnectionError, TimeoutError)
_Actor = ray.remote(concurrency_groups={"aside": 2})(RemoteSlot)


@dataclass
class Slot:
    """An actor of the cluster, its node, and its state."""

    actor: Any
    node: str
    has_answered: bool = False
    is_leaving: bool = False
    is_lost: bool = False


def needs(resources: Mapping[str, float]) -> list[dict[str, float]]:
    """Returns what each slot of a node reserves: its TPU, a GPU, or a processor."""
    if resources.get("TPU"):
        return [{"resources": {"TPU": resources["TPU"]}}]  # type: ignore[dict-item]
    if resources.get("GPU"):
        return [{"num_gpus": 1.0}] * int(resources["GPU"])
    return [{"num_cpus": 1.0}] * int(resources.get("CPU", 0))


class Shortage:
    """Watches whether a cluster has slots; reports or stops the run if it has none.

    A Ray that was started on this machine has one node and cannot recover its loss: the
    run is asked to stop. For slots of any other cluster the run waits, reports the wait
    after PATIENCE_SECONDS, and stops after `slots_timeout`.
    """

    def __init__(self, options: Options, stop: StopRequest):
        self._address = options.ray_address
        self._timeout = options.slots_timeout
        self._stop = stop
        self._since = time.time()
        self._is_said = False
        self._lock = threading.Lock()

    def look(self, offered: int, ready: int) -> None:
        """Records how many slots the nodes offer, and how many can take turns now."""
        with self._lock:
            now = time.time()
            waited = now - self._since
            if self._address is None:
                if not offered:
                    self._stop.set(_ENDED)
            elif ready:
                self._since, self._is_said = now, False
            elif self._timeout and waited >= self._timeout:
                self._stop.set(
                    f"--slots_timeout, as the Ray cluster at {self._address} had no "
                    f"slot for {duration(waited)}"
                )
            elif waited >= PATIENCE_SECONDS and not self._is_said:
                self._is_said = True
                self._say_so(offered)

    def is_over(self) -> bool:
        """Returns whether a Ray that was started here has ended; then the run stops.

        A minute after the end of its control store, Ray would end this process too,
        without any message.
        """
        if self._address is not None or _control_store_runs():
            return False
        self._stop.set(_ENDED)
        return True

    def _say_so(self, offered: int) -> None:
        since = time.strftime("%H:%M:%S", time.localtime(self._since))
        print(
            f"waiting since {since} for a slot of the Ray cluster at {self._address}, "
            f"whose nodes offer {offered}: add nodes or free some; Ctrl-C stops, and "
            "the same command continues.",
            flush=True,
        )


class RayCluster:
    """The slots of a Ray cluster.

    Args:
        options: options of the run. Without `ray_address` Ray is started on this
            machine, on the loopback interface alone, with `slots` processors.
        stop: set when the cluster will have no slots any more.

    Attributes:
        pool: the slots, and the studies that lease them.
        error: the error that ends the run, None unless one was raised.
    """

    def __init__(self, options: Options, stop: StopRequest):
        self.pool = SlotPool()
        self.error: Exception | None = None
        self._options = asdict(slot_options(options))
        self._address, self._processors = options.ray_address, options.slots
        self._slots: dict[int, Slot] = {}
        self._refused: dict[str, str] = {}
        self._kinds: dict[frozenset[str], Mapping[str, Any]] = {}
        self._numbers = itertools.count()
        self._used_at = time.monotonic()
        self._shortage = Shortage(options, stop)
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._watch: threading.Thread | None = None

    def connect(self) -> None:
        """Connects to the cluster, or starts Ray on this machine; once only."""
        if self._watch is None:
            connect(self._address, self._processors)
            self._watch = threading.Thread(target=self._keep_looking, daemon=True)
            self._watch.start()

    def slot(self, number: int) -> Slot:
        """Returns a slot; SlotLost if it is gone."""
        with self._lock:
            slot = self._slots.get(number)
            if slot is None or slot.is_lost:
                raise SlotLost(f"slot {number} is gone")
            return slot

    def holds(self, number: int) -> bool:
        """Returns whether a slot can be used: it is neither lost nor leaving."""
        with self._lock:
            slot = self._slots.get(number)
            return slot is not None and not slot.is_lost and not slot.is_leaving

    def is_lost(self, number: int) -> bool:
        """Returns whether a slot is gone, and with it the states that it held."""
        with self._lock:
            return number in self._slots and self._slots[number].is_lost

    def lose(self, number: int) -> None:
        """Removes a slot whose actor has died; a new one takes its place."""
        with self._lock:
            slot = self._slots[number]
            if not slot.is_lost:
                slot.is_lost = True
                self.pool.remove(number)
                # An actor that was only out of reach would keep its processor.
                ray.kill(slot.actor)

    def refuse_node(self, number: int, why: str) -> None:
        """Leaves the node of a slot out from now on, with one message about it."""
        with self._lock:
            node = self._slots[number].node
            if node not in self._refused:
                self._refused[node] = why
                print(f"note: node {node[:8]} is left out: {why}")
            for other, slot in self._slots.items():
                if slot.node == node:
                    slot.is_leaving = True
                    self.pool.remove(other)

    def kind(self, environment: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the environment that all slots have to have.

        The first slot that has answered decides. Simulations and training have
        different entries, and so a first slot each.
        """
        with self._lock:
            return self._kinds.setdefault(frozenset(environment), environment)

    def close(self) -> None:
        """Leaves the cluster, which ends its slots."""
        self._closing.set()
        if self._watch is not None:
            self._watch.join()
            ray.shutdown()

    def _keep_looking(self) -> None:
        while not self._closing.is_set():
            try:
                if not self._shortage.is_over():
                    self._look()
            except _UNREACHABLE:
                # The nodes are looked at again: the head node may be busy.
                pass
            except Exception as error:
                self.error = error
            self._closing.wait(_LOOK_SECONDS)

    def _look(self) -> None:
        """Makes slots on nodes that have come, and drops the slots of nodes that go."""
        nodes = live_nodes()
        with self._lock:
            for number, slot in self._slots.items():
                if not slot.is_lost and slot.node not in nodes:
                    self.lose(number)
            for node, resources in nodes.items():
                if node not in self._refused:
                    self._fill(node, needs(resources))
            held = [slot for number, slot in self._slots.items() if self.holds(number)]
            if held or not self._refused:
                self._used_at = time.monotonic()
            elif time.monotonic() - self._used_at > PATIENCE_SECONDS:
                why = next(iter(self._refused.values()))
                self.error = UserError(f"every node of the cluster is left out: {why}.")
        offered = sum(len(needs(resources)) for resources in nodes.values())
        self._shortage.look(offered, sum(slot.has_answered for slot in held))

    def _fill(self, node: str, wanted: Sequence[Mapping[str, Any]]) -> None:
        """Makes the slots that a node lacks."""
        existing = sum(
            slot.node == node and not slot.is_lost for slot in self._slots.values()
        )
        for need in wanted[existing:]:
            actor = _Actor.options(
                **need,
                max_restarts=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            ).remote(self._options)
            number = next(self._numbers)
            self._slots[number] = Slot(actor, node)
            self.pool.add(number)


def _control_store_runs() -> bool:
    """Returns whether the control store of a Ray that was started here still runs."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process().children():
            if process.name() == "gcs_server":
                return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def live_nodes() -> dict[str, Mapping[str, float]]:
    """Returns the resources of each live node of the cluster, by node ID."""
    return {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}


def slot_options(options: Options) -> Options:
    """Returns the options of one slot, with paths that hold on any machine."""
    data_dir = options.data_dir
    return replace(
        options,
        sweep_dir=_absolute(options.sweep_dir),
        data_dir=None if data_dir is None else _absolute(data_dir),
        slots=1,
    )


def connect(address: str | None, slots: int) -> None:
    """Connects to a cluster, or starts Ray on this machine; prints nothing.

    Raises:
        UserError: Ray cannot be started, or there is no cluster at the address.
    """
    if address is not None:
        _check_listening(address)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    # Actors import the same modules as this process, wherever it was started.
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places = [str(Path.cwd()), *filter(None, given)]
    paths = {"PYTHONPATH": os.pathsep.join(places)}
    runtime = {"env_vars": {**paths, "TF_CPP_MIN_LOG_LEVEL": "3"}}
    if address is None:
        _check_loopback()
        os.environ.setdefault(_NICENESS, "0")
        quiet |= {"num_cpus": slots or processors(), "include_dashboard": False}
        quiet["object_store_memory"] = _OBJECT_STORE_BYTES
    try:
        with _own_signals():
            ray.init(address=address or "local", runtime_env=runtime, **quiet)
    except Exception as error:  # Ray raises errors of every kind, plain Exception too
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        if address is None:
            raise UserError(
                f"Ray cannot be started on this machine ({why}): run the command "
                "again, or without --engine=ray."
            ) from error
        raise UserError(
            f"the Ray cluster at --ray_address={address} cannot be joined ({why}): "
            "give 'auto' on a node of it, or host:port of its head node."
        ) from error


def _check_listening(address: str) -> None:
    """Raises UserError unless something listens at `host:port` within a time limit.

    Ray itself would try for minutes, and print messages of its own.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return
    end = time.monotonic() + _LISTENING_SECONDS
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), 5.0).close()
            return
        except (OSError, OverflowError, UnicodeError) as error:
            if time.monotonic() < end and not isinstance(error, socket.gaierror):
                time.sleep(1.0)
                continue
            why = getattr(error, "strerror", None) or error
            raise UserError(
                f"nothing can be reached at --ray_address={address} ({why}): give "
                "'auto' on a node of the cluster, or host:port of its head node."
            ) from error


def _check_loopback() -> None:
    """Raises UserError if a Ray that is started here would listen on all addresses.

    Ray reads LOOPBACK_ONLY once, when it is imported.
    """
    if ray.util.get_node_ip_address() != _LOOPBACK:
        raise UserError(
            "Ray was imported before in this process, and would listen on all "
            f"addresses of this machine: set {LOOPBACK_ONLY}=0 before the import, or "
            "give the address of a cluster."
        )


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Restores this process's handlers of the signals that ask to stop."""
    # Ray takes SIGTERM: it prints its stacks and aborts what has not ended three
    # seconds later, which leaves no time to save.
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def _absolute(path: str) -> str:
    """Returns a path that means the same wherever a process was started."""
    return path if "://" in path else str(Path(path).resolve())
