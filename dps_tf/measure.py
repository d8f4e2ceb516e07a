"""Measures smoothness and noise along training: `python -m dps_tf.measure ...`.

Trains the winner of each finished cell of a sweep again, and any trial that is named,
and measures ten updates on the way. The measurements are kept beside the cell's tables,
where `dps_tf.report` finds it; running the command again does what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from absl import flags

from dps_tf._tensorflow import import_tensorflow
from dps_tf.cli import flags as common
from dps_tf.cli.command_line import (
    FINISHED,
    RUN_AGAIN,
    command,
    import_modules,
    import_ray,
    tell_of_damage,
)
from dps_tf.core import UserError

if TYPE_CHECKING:
    import pandas as pd

    from dps_tf.probing import Wanted
    from dps_tf.store import RecordedTrial, StudyReader, SweepReader
    from dps_tf.tuning.interruption import StopRequest
    from dps_tf.tuning.options import Options
    from dps_tf.tuning.resources import Resources

_MAX_CELLS = 256
"""Cells that wait for slots at the same time; each takes a thread."""

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
    "Gradients are taken over so many of the first training examples; 0 is all.",
)
_TIMES = flags.DEFINE_integer(
    "times", 10, "How many updates are measured, spaced evenly in log steps."
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
_PAIRS = flags.DEFINE_bool(
    "pairs", False, "Whether to compare pruned cells with dense ones of equal seed."
)
common.section("Devices and machines")
_STRATEGY = flags.DEFINE_string(
    "strategy",
    "auto",
    "That of training, where batches were shared: mirrored.",
)
_ENGINE = common.engine(
    "cell after cell", "cells side by side on the slots of a Ray cluster"
)
_RAY_ADDRESS = common.ray_address()


@command
def main() -> int:
    """Measures what the flags name and prints it; returns the exit code."""
    common.require(_SWEEP_DIR)
    from dps_tf.store import SweepLayout, SweepReader, files_for

    layout = SweepLayout(_SWEEP_DIR.value)
    cells = _CELL.value or finished_cells(
        SweepReader(files_for(layout.root), layout.root)
    )
    import_tensorflow()
    import_modules(_IMPORT.value)
    from dps_tf.tuning.options import Options
    from dps_tf.tuning.resources import Resources, configure_threads

    configure_threads()
    options = Options(
        layout.root,
        _DATA_DIR.value,
        strategy=_STRATEGY.value,
        engine=_ENGINE.value,
        ray_address=_RAY_ADDRESS.value,
        imports=tuple(_IMPORT.value),
    )
    if options.engine == "ray":
        return _measure(cells, options, None)
    alone = Resources.of_this_machine(slots=1, strategy=_STRATEGY.value)
    return _measure(cells, options, alone)


def _measure(
    cells: Sequence[str], options: Options, resources: Resources | None
) -> int:
    """Measures cells with this machine's devices, or on Ray; returns the exit code."""
    from dps_tf.tuning.interruption import Interrupted, StopRequest

    stop = StopRequest()
    if resources is None:
        measuring = _on_ray(cells, options, stop)
    else:
        measuring = _here(cells, options, resources, stop)
    found = []
    with stop.listening():
        try:
            for cell, measured in measuring:
                if len(measured):
                    found.append(measured)
                    print(table(cell, measured), flush=True)
        except Interrupted:
            print(f"stopped by {stop.signal_name}; run the same command to continue.")
            return RUN_AGAIN
    if _PAIRS.value and found:
        import pandas as pd

        from dps_tf.store import SweepReader, files_for

        sweep = SweepReader(files_for(options.sweep_dir), options.sweep_dir)
        trials = sweep.tables(("trials",)).trials
        print(compared(pd.concat(found, ignore_index=True), trials))
    return FINISHED


def _here(
    cells: Sequence[str], options: Options, resources: Resources, stop: StopRequest
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Gives the measurements of cells, one after another."""
    from dps_tf.probing import Measurer, ProgramCache
    from dps_tf.store import SweepLayout, files_for

    measurer = Measurer(
        files_for(options.sweep_dir),
        SweepLayout(options.sweep_dir),
        _wanted(),
        data_dir=options.data_dir,
        programs=ProgramCache(resources),
        stop=stop,
    )
    for cell in cells:
        yield cell, measurer.measure(cell, _TRIAL.value)


def _on_ray(
    cells: Sequence[str], options: Options, stop: StopRequest
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Gives the measurements of cells, as many side by side as there are slots."""
    from dps_tf.probing import Measurer
    from dps_tf.probing.measurement import replayed_elsewhere
    from dps_tf.store import SweepLayout, files_for

    wanted = _wanted()
    cluster = import_ray("ray_cluster", options.ray_address)
    with cluster.calling(replayed_elsewhere, options, stop) as call:

        def replays(study: StudyReader, trial: RecordedTrial) -> pd.DataFrame:
            name = f"{study.name} trial {trial.number}"
            rows, said = call(name, wanted, study.name, trial)
            for sentence in said:
                print(sentence)
            return rows

        files, layout = files_for(options.sweep_dir), SweepLayout(options.sweep_dir)
        measurer = Measurer(files, layout, wanted, stop=stop, replays=replays)
        with ThreadPoolExecutor(_MAX_CELLS) as pool:
            parts = [
                pool.submit(measurer.measure, cell, _TRIAL.value) for cell in cells
            ]
            for cell, part in zip(cells, parts, strict=True):
                try:
                    yield cell, part.result()
                except BaseException:
                    stop.set("an error in another cell")
                    raise


def _wanted() -> Wanted:
    """Returns what the flags ask for."""
    from dps_tf.probing import Wanted

    try:
        steps = tuple(int(step) for step in _STEPS.value)
    except ValueError:
        raise UserError(
            f"--steps={','.join(_STEPS.value)} is no list of whole numbers: write, for "
            "example, --steps=0,20,100."
        ) from None
    curvature = _CURVATURE.value or _PAIRS.value
    return Wanted(_EXAMPLES.value, _TIMES.value, steps, _UNTIL.value, curvature)


def finished_cells(sweep: SweepReader) -> list[str]:
    """Returns the closed cells of a sweep; prints the others and damaged files.

    Raises:
        UserError: there is none.
    """
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


def compared(measured: pd.DataFrame, trials: pd.DataFrame) -> str:
    """Returns how pruned cells compare with dense ones, as text."""
    from dps_tf.analysis.paired_ratios import (
        FIRST_STEP,
        paired_measurements,
        paired_ratios,
    )

    paired = paired_measurements(measured, trials)
    ratios = paired_ratios(paired, ("smoothness", "largest_eigenvalue"))
    if ratios.empty:
        return (
            "no trial of a pruned cell has one of equal seed, number and "
            "metaparameters in a dense cell beside it."
        )
    lines = []
    for row in ratios.to_dict("records"):
        matched = (
            f"at equal steps from {FIRST_STEP} on"
            if row["matched"] == "step"
            else "at equal training loss"
        )
        found = "not known, no pair was looked at there"
        if row["pairs"]:
            found = (
                f"{row['ratio']:.3g} ({row['low']:.3g} to {row['high']:.3g}; "
                f"{row['pairs']} pairs of {row['seeds']} seeds)"
            )
        lines.append(
            f"{row['workload']}, batch size {row['batch_size']}: {row['quantity']} of "
            f"{row['sparsity_method']} {row['sparsity']:g} over dense {matched}: "
            f"{found}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
