"""Saves a trained trial as Keras weights and masks: `python -m dps_tf.export ...`.

The command takes the newest kept state of the trial and prints the sparsity of each
layer. `keras.Model.load_weights` and `numpy.load` read the files.
"""

from __future__ import annotations

from absl import flags

from dps_tf._tensorflow import import_tensorflow
from dps_tf.cli import flags as common
from dps_tf.cli.command_line import FINISHED, command, import_modules, tell_of_damage
from dps_tf.core import UserError

common.section("What is saved")
_SWEEP_DIR = common.sweep_dir()
_CELL = flags.DEFINE_string("cell", None, "Name of a cell, as `status` shows it.")
_TRIAL = flags.DEFINE_string(
    "trial", None, "Number of the trial, or `best`: the one that met the goal first."
)
_OUT = flags.DEFINE_string("out", None, "An empty folder; made if it is missing.")
_DATA_DIR = common.data_dir()
_IMPORT = common.imports()


@command
def main() -> int:
    """Exports the trial that the flags name; returns the exit code 0."""
    common.require(_SWEEP_DIR, _CELL, _TRIAL, _OUT)
    if "://" in _OUT.value:
        raise UserError(
            f"--out={_OUT.value} is on no disk of this machine: name a folder here."
        )
    import_tensorflow(in_command=True)
    from dps_tf.probing.trained_trial import trained_trial
    from dps_tf.store import SweepReader, files_for
    from dps_tf.tuning.resources import configure_threads

    files = files_for(_SWEEP_DIR.value)
    sweep = SweepReader(files, _SWEEP_DIR.value)
    configure_threads(sweep.intra_op_threads)
    import_modules(_IMPORT.value)
    trained = trained_trial(files, sweep, _CELL.value, _TRIAL.value, _DATA_DIR.value)
    tell_of_damage(trained.problems, set())
    print(trained.save(_OUT.value))
    return FINISHED


if __name__ == "__main__":
    main()
