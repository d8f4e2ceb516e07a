"""The options of a run: one value, handed down from the command to whatever asks."""

from __future__ import annotations

from dataclasses import dataclass

from dps_tf.training import placement


@dataclass(frozen=True)
class Options:
    """Options of a run; none of them changes a result.

    Attributes:
        sweep_dir: where the sweep is kept.
        data_dir: folder of prepared data sets.
        slots: trials side by side; 0 leaves that to the machine.
        strategy: `auto` gives each device trials of its own; `one_device`; `mirrored`
            shares each batch out over the replicas; `tpu`.
        tpu: `local`, or the name of a Cloud TPU.
        split: of a TPU, see `Resources.of_this_machine`.
        data_placement: `device`, `stream`, or `auto`; see `training.placement`.
        allow_other_machine: continue studies that were begun elsewhere.
        discard_states: remove the states of finished studies.
        workers: processes on this machine that split the cells of the sweep.
        shard: (i, n): run cells i, i + n, ... of the grid only.
    """

    sweep_dir: str
    data_dir: str | None = None
    slots: int = 0
    strategy: str = "auto"
    tpu: str | None = None
    split: str = "trials"
    data_placement: str = "auto"
    allow_other_machine: bool = False
    discard_states: bool = False
    workers: int = 1
    shard: tuple[int, int] = (0, 1)

    def __post_init__(self) -> None:
        placement.check(self.data_placement)
