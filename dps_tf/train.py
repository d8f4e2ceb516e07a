"""Runs a sweep: `python -m dps_tf.train --gin_file=F --sweep_dir=D`.

The same command continues a stopped sweep; a finished sweep is left as it is.
"""

from __future__ import annotations

import os
from dataclasses import fields
from typing import TYPE_CHECKING

from absl import flags

from dps_tf._tensorflow import import_tensorflow
from dps_tf.cli import flags as common
from dps_tf.cli.command_line import DEFECT, FINISHED, RUN_AGAIN, command, import_modules
from dps_tf.core import UserError, check_positive

if TYPE_CHECKING:
    from dps_tf.cli.sweep_run import SweepRun
    from dps_tf.tuning.options import Options

common.section("What is run")
_GIN_FILES = flags.DEFINE_multi_string(
    "gin_file", [], "A gin file, or the name of a shipped one; may be repeated."
)
_GIN_BINDINGS = flags.DEFINE_multi_string(
    "gin_bindings", [], "A binding, such as workload.points=8; may be repeated."
)
_SWEEP_DIR = common.sweep_dir()
common.data_dir()
_IMPORT = common.imports()
_DRY_RUN = flags.DEFINE_bool(
    "dry_run",
    False,
    "Let one trial of each kind make one step, keep nothing, and show the cells that "
    "would be run and their largest cost.",
)
common.section("Before paying")
_PLAN = flags.DEFINE_bool(
    "plan",
    False,
    "After what --dry_run does, measure the speed of this machine for some seconds and "
    "show how long each cell and the sweep will take, with 80 % intervals.",
)
_LIKE = flags.DEFINE_multi_string(
    "like",
    [],
    "With --plan: a finished sweep of a similar workload, or a table (.csv) of "
    "published curves, from which steps are predicted; may be repeated.",
)
_PRICE = flags.DEFINE_float("price", None, "With --plan: money per hour.")
_WATTS = flags.DEFINE_float("watts", None, "With --plan: power of the machine.")
_STEP_TIMES = flags.DEFINE_string(
    "step_times",
    None,
    "With --plan: CSV file to write the measured seconds of a step to, as "
    "`dps_tf.recommend` reads it.",
)
common.section("Devices and machines")
flags.DEFINE_integer(
    "slots", 0, "Trials side by side; 0 is one per processor, or one per GPU."
)
flags.DEFINE_integer(
    "lanes",
    0,
    "Trials that one program advances together, 1 or no power of two; 0 decides by "
    "network, batch size and device. A study keeps its number.",
)
flags.DEFINE_string(
    "xla",
    "auto",
    "on or off: whether XLA compiles steps and evaluations; auto: on GPUs, where it "
    "can. A study keeps its own.",
)
flags.DEFINE_bool(
    "deterministic",
    None,
    "Whether a GPU repeats a trial to the bit, in up to half as much time again. A "
    "study keeps its own.",
)
flags.DEFINE_string(
    "strategy",
    "auto",
    "auto: each device runs its own trials; one_device; mirrored: all devices share "
    "each batch; tpu: all cores of this TPU host do; tpu_cores: each core runs its own "
    "trials.",
)
flags.DEFINE_string(
    "data_placement",
    "auto",
    "device: data lie on the devices; stream: they are sent from the host; auto: on "
    "the devices where they fit. Results do not depend on it in one lane, which "
    "streamed data need.",
)
flags.DEFINE_string(
    "engine", "local", "local: this machine; ray: the slots of a Ray cluster."
)
flags.DEFINE_string(
    "ray_address",
    None,
    "With --engine=ray: auto, or host:port of a head node; without, Ray is started "
    "on this machine.",
)
flags.DEFINE_float(
    "slots_timeout",
    0.0,
    "With --ray_address: seconds without any slot after which the run stops, with exit "
    "code 75; 0 waits until a signal stops it.",
)
common.section("Studies that exist already")
flags.DEFINE_bool(
    "allow_other_machine",
    False,
    "Continue a study begun with other builds or instruction sets; it is recorded.",
)

_KERAS_TUNER_CHIEF = "KERASTUNER_ORACLE_IP"
"""Variable with which keras-tuner asks another process for every trial."""


def _options() -> Options:
    """Returns the options of the flags; UserError for values that are not allowed."""
    from dps_tf.tuning.options import Options

    for flag in (_LIKE, _PRICE, _WATTS, _STEP_TIMES):
        if flag.value not in (None, []) and not _PLAN.value:
            raise UserError(f"--{flag.name} is for a plan: give --plan too.")
    if os.environ.get(_KERAS_TUNER_CHIEF):
        raise UserError(
            f"{_KERAS_TUNER_CHIEF} is set, and keras-tuner's chief and workers are not "
            "used: unset it; an adaptive oracle runs in this process."
        )
    # Each option is the flag of its name.
    names = [field.name for field in fields(Options) if field.name in flags.FLAGS]
    given = {name: flags.FLAGS[name].value for name in names}
    given["sweep_dir"] = _SWEEP_DIR.value or ""
    return Options(**given, imports=tuple(_IMPORT.value))


def _hourly_costs() -> dict[str, float]:
    """Returns what an hour of this machine costs, by unit."""
    for flag in (_PRICE, _WATTS):
        if flag.value is not None:
            check_positive(f"--{flag.name}", flag.value)
    costs = {"money": _PRICE.value, "kWh": _WATTS.value and _WATTS.value / 1000}
    return {unit: cost for unit, cost in costs.items() if cost}


@command
def main() -> int:
    """Runs the sweep that the flags name; returns the exit code."""
    if not (_DRY_RUN.value or _PLAN.value):
        common.require(_SWEEP_DIR)
    import_tensorflow(in_command=True)
    from dps_tf.cli.sweep_run import SweepRun, threads_of_run
    from dps_tf.workloads.reading import SweepConfiguration, read_configuration

    options = _options()
    # A module of the user's own may start TensorFlow.
    threads = threads_of_run(options)
    import_modules(_IMPORT.value)
    configuration = SweepConfiguration(
        *read_configuration(_GIN_FILES.value, _GIN_BINDINGS.value)
    )
    sweep_run = SweepRun(configuration, options, threads)
    if _PLAN.value:
        print(sweep_run.plan(_LIKE.value, _hourly_costs(), _STEP_TIMES.value))
        return FINISHED
    if _DRY_RUN.value:
        print(sweep_run.try_out())
        return FINISHED
    return _run(sweep_run)


def _run(sweep_run: SweepRun) -> int:
    """Runs a sweep in this process, until a signal stops it; returns the exit code."""
    from dps_tf.tuning.interruption import Interrupted, StopRequest

    with StopRequest().listening() as stop:
        try:
            outcome = sweep_run.run(stop)
        except Interrupted:
            print(f"stopped by {stop.signal_name}; run the same command to continue.")
            return RUN_AGAIN
    sweep_run.print_outcome(outcome)
    if outcome.busy:
        return RUN_AGAIN
    return DEFECT if outcome.failed else FINISHED


if __name__ == "__main__":
    main()
