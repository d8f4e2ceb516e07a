"""The options of a run say where and how its trials run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dps_tf.core import PLACEMENTS, STRATEGIES, UserError, check_known

ENGINES = ("local", "ray")
"""Places where trials run: this process, or the processes of a Ray cluster."""

XLA: Mapping[str, bool | None] = {"auto": None, "on": True, "off": False}
"""Whether XLA compiles, by the value of --xla; None leaves it to the slot."""

LOOPBACK_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Environment variable; with the value 0, Ray listens on 127.0.0.1 alone."""


@dataclass(frozen=True)
class Options:
    """Options of a run; `lanes`, `xla` and `deterministic` alone change a result.

    These three are for new studies: a study keeps its own, and they change how numbers
    round.

    Attributes:
        sweep_dir: directory of the sweep.
        data_dir: folder of prepared data sets.
        slots: number of trials side by side; 0 is one per GPU, or one per processor on
            a machine without GPUs.
        lanes: number of trials that one program advances together; 0 lets the slot that
            opens a study decide by its network, batch size, points and devices.
        xla: whether XLA compiles steps and evaluations: `on`, `off`, or `auto`, which
            is on for GPUs where XLA can compile the network.
        deterministic: whether a GPU repeats a trial to the bit, in up to half as much
            time again; None is what a study has, or False for a new one.
        strategy: `auto` gives each device trials of its own; `one_device` uses the
            first one. `mirrored` and `tpu` are one slot whose devices, or whose cores,
            share each batch. `tpu_cores` gives each core of a TPU trials of its own.
        data_placement: `device`, `stream`, or `auto`; see `training.device_memory`.
        allow_other_machine: continue studies that were begun elsewhere.
        engine: `local`, or `ray` for the slots of a Ray cluster.
        ray_address: address of the Ray cluster; None starts Ray on this machine.
        slots_timeout: seconds without any slot of the Ray cluster after which the run
            stops; 0 waits until a signal stops it.
        imports: the user's own modules, which register workloads.
    """

    sweep_dir: str
    data_dir: str | None = None
    slots: int = 0
    lanes: int = 0
    xla: str = "auto"
    deterministic: bool | None = None
    strategy: str = "auto"
    data_placement: str = "auto"
    allow_other_machine: bool = False
    engine: str = "local"
    ray_address: str | None = None
    slots_timeout: float = 0.0
    imports: tuple[str, ...] = ()

    @property
    def settled(self) -> dict[str, Any]:
        """The values of the fields of `core.study.OPEN` that studies are given."""
        xla, deterministic = XLA[self.xla], self.deterministic
        return {"lanes": self.lanes, "xla": xla, "deterministic": deterministic}

    def __post_init__(self) -> None:
        check_known("--strategy", self.strategy, STRATEGIES)
        check_known("--xla", self.xla, XLA)
        check_known("data placement", self.data_placement, PLACEMENTS)
        check_known("--engine", self.engine, ENGINES)
        if self.ray_address is not None and self.engine != "ray":
            raise UserError(
                f"--ray_address={self.ray_address} goes with --engine=ray: add that."
            )
        if not 0 <= self.slots_timeout < math.inf:
            raise UserError(
                f"--slots_timeout={self.slots_timeout}: give seconds; 0 sets no limit."
            )
        if self.slots_timeout and self.ray_address is None:
            raise UserError(
                f"--slots_timeout={self.slots_timeout} goes with --ray_address: add "
                "that."
            )
