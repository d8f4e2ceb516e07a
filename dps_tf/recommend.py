"""Recommends a batch size: `python -m dps_tf.recommend --sweep_dir=D --devices=8`.

The command names the batch size that reaches the goal first on N devices, and the
cheapest one. It takes K* from a sweep (or from any table, --csv) and the seconds of a
step from --step_times, or from the sweep. It prints a sentence for each curve, or why
no batch size is recommended, and tables; --out also writes them, with the figure.
"""

from __future__ import annotations

from pathlib import Path

from absl import flags

from dps_tf.cli import flags as common
from dps_tf.cli.command_line import FINISHED, command, tell_of_damage
from dps_tf.core import UserError, printable

common.section("What is recommended")
_SWEEP_DIRS = common.sweep_dirs()
_CSV = flags.DEFINE_string(
    "csv", None, "Table of K* in place of sweeps, as `dps_tf.fit` reads it."
)
_STEP_TIMES = flags.DEFINE_string(
    "step_times",
    None,
    "CSV with batch_size, devices, seconds (of a step) and, optionally, price (per "
    "hour for all these devices); by default the step times of the sweep.",
)
_DEVICES = flags.DEFINE_integer("devices", 1, "Devices that share each batch.")
_DEADLINE = flags.DEFINE_float(
    "deadline", None, "Seconds within which the cheapest choice reaches the goal."
)
_OUT = flags.DEFINE_string(
    "out", None, "Folder for candidates.csv, choices.csv and recommendation.png."
)


@command
def main() -> int:
    """Prints the recommendation for every curve; returns the exit code 0."""
    if bool(_SWEEP_DIRS.value) == bool(_CSV.value):
        raise UserError("give --sweep_dir, or --csv: a table of batch sizes and steps.")
    # After the flags are checked: SciPy takes seconds to load.
    from dps_tf.analysis import fit_table
    from dps_tf.analysis.interchange.foreign_files import read_csv
    from dps_tf.analysis.recommend import recommend_curves
    from dps_tf.analysis.report.recommendation import write_tables
    from dps_tf.analysis.step_times import recorded_step_times
    from dps_tf.analysis.wording import exact
    from dps_tf.cli.notebook import load

    given = read_csv(_STEP_TIMES.value) if _STEP_TIMES.value else None
    if _CSV.value:
        results, recorded = fit_table.read_table(_CSV.value), None
    else:
        tables = load(*_SWEEP_DIRS.value)
        tell_of_damage(tables.problems, set())
        results, recorded = tables.results, recorded_step_times(tables.work)
    recommendations = recommend_curves(
        results, given, recorded, _DEVICES.value, _DEADLINE.value
    )
    for name, found in recommendations.items():
        print(printable(f"{name}: {found}"))
        if not found.abstains:
            text = found.choices.to_string(index=False, float_format=exact, na_rep="")
            print("\n".join(line.rstrip() for line in text.splitlines()), "\n")
    if _OUT.value:
        write_tables(recommendations, Path(_OUT.value))
        print(f"written: {_OUT.value}")
    return FINISHED


if __name__ == "__main__":
    main()
