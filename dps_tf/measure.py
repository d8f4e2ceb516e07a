"""Measures smoothness and noise along training: `python -m dps_tf.measure ...`.

The command trains the winner of each finished cell of a sweep again, and any trial that
is named, and measures ten updates on the way. The measurements are kept beside the
cell's tables, where `dps_tf.report` reads them; running the command again makes the
missing ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from dps_tf._tensorflow import import_tensorflow
from dps_tf.cli import flags as common
from dps_tf.cli.command_line import (
    FINISHED,
    RUN_AGAIN,
    command,
    import_modules,
    tell_of_damage,
)
from dps_tf.core import UserError

if TYPE_CHECKING:
    import pandas as pd

    from dps_tf.probing import Wanted
    from dps_tf.store import SweepLayout, SweepReader
    from dps_tf.tuning.resources import Resources

common.section("What is measured")
_SWEEP_DIR = common.sweep_dir()
_DATA_DIR = common.data_dir()
_IMPORT = common.imports()
_CELL = flags.DEFINE_multi_string(
    "cell",
    [],
    "A cell, as `status` names it, by default every finished one; may be repeated.",
)
_TRIAL = flags.DEFINE_multi_integer(
    "trial", [], "A trial of each cell, by default the winner; may be repeated."
)
_EXAMPLES = flags.DEFINE_integer(
    "examples",
    5_000,
    "Number of the first training examples over which gradients are taken; 0 is all.",
)
_TIMES = flags.DEFINE_integer(
    "times", 10, "Number of updates that are measured, spaced evenly in log steps."
)
_STEPS = flags.DEFINE_list(
    "steps", [], "Steps whose updates are measured instead, such as 0,20,100."
)
_UNTIL = flags.DEFINE_integer(
    "until", 0, "A step up to which trials go on past the goal.", lower_bound=0
)
_CURVATURE = flags.DEFINE_bool(
    "curvature", False, "Whether to measure loss and curvature too; takes longer."
)
_OPTIMIZER_NOISE = flags.DEFINE_bool(
    "optimizer_noise",
    False,
    "Whether to measure the noise scale in the geometry of the optimizer too.",
)
common.section("Devices")
_STRATEGY = flags.DEFINE_string(
    "strategy", "auto", "The strategy of training, if batches were shared: mirrored."
)


@command
def main() -> int:
    """Measures what the flags name and prints it; returns the exit code."""
    common.require(_SWEEP_DIR)
    from dps_tf.store import SweepLayout, SweepReader, files_for

    layout = SweepLayout(_SWEEP_DIR.value)
    sweep = SweepReader(files_for(layout.root), layout.root)
    cells = _CELL.value or finished_cells(sweep)
    import_tensorflow(in_command=True)
    from dps_tf.tuning.resources import Resources, configure_threads

    configure_threads(sweep.intra_op_threads)
    import_modules(_IMPORT.value)
    alone = Resources.of_this_machine(slots=1, strategy=_STRATEGY.value)
    return _measure(cells, layout, alone)


def _measure(cells: Sequence[str], layout: SweepLayout, resources: Resources) -> int:
    """Measures cells one after another; returns the exit code."""
    from dps_tf.probing import Measurer, ProgramCache
    from dps_tf.store import files_for
    from dps_tf.tuning.interruption import Interrupted, StopRequest

    stop = StopRequest()
    measurer = Measurer(
        files_for(layout.root),
        layout,
        _wanted(),
        data_dir=_DATA_DIR.value,
        programs=ProgramCache(resources),
        stop=stop,
    )
    is_empty = True
    with stop.listening():
        try:
            for cell in cells:
                measured = measurer.measure(cell, _TRIAL.value)
                if len(measured):
                    is_empty = False
                    print(table(cell, measured), flush=True)
        except Interrupted:
            print(f"stopped by {stop.signal_name}; run the same command to continue.")
            return RUN_AGAIN
    if is_empty:
        raise UserError("nothing was measured, see above.")
    return FINISHED


def _wanted() -> Wanted:
    """Returns the measurements that the flags ask for."""
    from dps_tf.probing import Wanted

    try:
        steps = tuple(int(step) for step in _STEPS.value)
    except ValueError:
        raise UserError(
            f"--steps={','.join(_STEPS.value)} is no list of whole numbers: write, for "
            "example, --steps=0,20,100."
        ) from None
    looks = _EXAMPLES.value, _TIMES.value, steps, _UNTIL.value
    return Wanted(*looks, _CURVATURE.value, _OPTIMIZER_NOISE.value)


def finished_cells(sweep: SweepReader) -> list[str]:
    """Returns the closed cells, and prints others and damage; UserError for none."""
    finished = [name for name, study in sweep.studies.items() if study.is_closed]
    tell_of_damage(sweep.problems, set())
    for name in sweep.studies:
        if name not in finished:
            print(f"{name}: left out, it is not finished.")
    if not finished:
        raise UserError(
            f"no cell of {sweep.layout.root} is finished: train first, or wait."
        )
    return finished


def table(cell: str, measured: pd.DataFrame) -> str:
    """Returns the measurements of a cell as text, one block per trial."""
    blocks = []
    for trial, rows in measured.groupby("trial"):
        wide = rows.pivot_table(
            index="step", columns="quantity", values="value", dropna=False
        )
        order = list(dict.fromkeys(rows["quantity"]))
        examples = int(rows["examples"].iloc[0])
        blocks.append(
            f"{cell}, trial {trial}, over {examples} training examples:\n"
            f"{wide[order].to_string(float_format='{:.4g}'.format)}"
        )
    return "\n".join(blocks)


if __name__ == "__main__":
    main()
