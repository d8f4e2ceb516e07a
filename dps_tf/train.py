"""Runs a sweep: `python -m dps_tf.train --gin_file=F --sweep_dir=D`.

Running it again continues; running it on a finished sweep does nothing and says so.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from dps_tf.cli.command_line import (
    DEFECT,
    FINISHED,
    RUN_AGAIN,
    import_modules,
    import_tensorflow,
    require,
    run,
)
from dps_tf.core.errors import UserError

if TYPE_CHECKING:
    from dps_tf.core.sweep import SweepSpecification
    from dps_tf.tuning.launching import Options
    from dps_tf.tuning.resources import Resources
    from dps_tf.tuning.sweep import SweepOutcome

_GIN_FILES = flags.DEFINE_multi_string(
    "gin_file", [], "A gin file, or the name of a shipped one; may be repeated."
)
_GIN_BINDINGS = flags.DEFINE_multi_string(
    "gin_bindings", [], "A binding, such as workload.points=8; may be repeated."
)
_SWEEP_DIR = flags.DEFINE_string("sweep_dir", None, "Where the sweep is kept.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Folder of prepared data sets.")
_IMPORT = flags.DEFINE_multi_string(
    "import", [], "A module that registers workloads of your own; may be repeated."
)
_DRY_RUN = flags.DEFINE_bool(
    "dry_run", False, "Only show what would be run, and what it may cost at most."
)
_SLOTS = flags.DEFINE_integer(
    "slots", 0, "Trials side by side; 0 is one per processor, or one per GPU."
)
_STRATEGY = flags.DEFINE_string(
    "strategy",
    "auto",
    "auto: each device carries its own trials; one_device; mirrored: all devices share "
    "each batch; multi_worker_mirrored: those of all processes that TF_CONFIG names, "
    "each of which is given this same command; tpu.",
)
_DATA_PLACEMENT = flags.DEFINE_string(
    "data_placement",
    "auto",
    "device: data lie on the devices; stream: they are sent from the host; auto: on "
    "the devices where they fit. No part of the result.",
)
_TPU = flags.DEFINE_string("tpu", None, "local, or the name of a Cloud TPU.")
_SPLIT = flags.DEFINE_string(
    "split",
    "trials",
    "Of a TPU: trials gives each core its own; data: all cores share each batch.",
)
_WORKERS = flags.DEFINE_integer(
    "workers", 1, "Processes on this machine that run the sweep together."
)
_SHARE = flags.DEFINE_bool(
    "share",
    False,
    "Work on cells together with other processes and machines that share.",
)
_SHARD = flags.DEFINE_string(
    "shard", "0/1", "i/n runs the cells i, i + n, ... of the grid only."
)
_ALLOW_OTHER_MACHINE = flags.DEFINE_bool(
    "allow_other_machine",
    False,
    "Continue a study begun with other builds or instruction sets; it is recorded.",
)
_DISCARD_STATES = flags.DEFINE_bool(
    "discard_states",
    False,
    "Remove the states of finished studies; these cannot be extended any more.",
)


def read_shard(text: str) -> tuple[int, int]:
    """Returns (i, n) of a shard written 'i/n', 0 <= i < n.

    Raises:
        UserError: it is written otherwise.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise UserError(
            f"--shard={text} is no shard: write i/n with i from 0 to n - 1, for "
            "example 0/4."
        )
    return int(match[1]), int(match[2])


def _run_workers() -> int:
    """Runs this command in several processes that share; returns their exit code."""
    from dps_tf.tuning.interruption import StopRequest
    from dps_tf.tuning.resources import cpu_slots
    from dps_tf.tuning.workers import run_workers

    slots = _SLOTS.value or cpu_slots(_WORKERS.value)
    given = [a for a in sys.argv[1:] if not a.lstrip("-").startswith("workers")]
    command = [sys.executable, "-m", "dps_tf.train", *given]
    command += ["--workers=1", "--share", f"--slots={slots}"]
    with StopRequest().listening() as stop:
        return run_workers(command, _WORKERS.value, stop)


def main(argv: Sequence[str]) -> int:
    """Runs the sweep that the flags name; returns the exit code."""
    del argv
    if not _DRY_RUN.value:
        require(_SWEEP_DIR)
    import_tensorflow()
    from dps_tf.tuning import launching
    from dps_tf.workloads.reading import read_configuration

    import_modules(_IMPORT.value)
    sweep, gin_text = read_configuration(_GIN_FILES.value, _GIN_BINDINGS.value)
    options = launching.Options(
        sweep_dir=_SWEEP_DIR.value or "",
        data_dir=_DATA_DIR.value,
        slots=_SLOTS.value,
        strategy=_STRATEGY.value,
        tpu=_TPU.value,
        split=_SPLIT.value,
        data_placement=_DATA_PLACEMENT.value,
        allow_other_machine=_ALLOW_OTHER_MACHINE.value,
        discard_states=_DISCARD_STATES.value,
        share=_SHARE.value,
        shard=read_shard(_SHARD.value),
    )
    launching.configure_threads()
    if options.strategy == "multi_worker_mirrored" and not _DRY_RUN.value:
        from dps_tf.tuning import grouped

        grouped.check(options, _WORKERS.value)
        return grouped.run(
            options, lambda resources: _train(sweep, gin_text, options, resources)
        )
    return _train(sweep, gin_text, options)


def _train(
    sweep: SweepSpecification,
    gin_text: str,
    options: Options,
    resources: Resources | None = None,
) -> int:
    """Runs a sweep with this machine's devices, or with a group's; the exit code."""
    from dps_tf.training.placement import explain
    from dps_tf.tuning import launching
    from dps_tf.workloads.reading import describe

    launching.check_names(sweep)
    if _WORKERS.value < 1:
        raise UserError(f"--workers={_WORKERS.value}: give at least 1.")
    if _DRY_RUN.value:
        print(describe(sweep, gin_text))
        print(explain(options.data_placement))
        return FINISHED
    if _WORKERS.value > 1:
        return _run_workers()
    return _code(launching.launch(sweep, gin_text, options, resources))


def _code(outcome: SweepOutcome | None) -> int:
    """Returns the exit code of a run; None was stopped."""
    if outcome is None or outcome.busy:
        return RUN_AGAIN
    if outcome.failed:
        print(
            f"failed trials stand in {', '.join(outcome.failed)}: K* there is a bound; "
            "running the command again tries them again, three times in all.",
            file=sys.stderr,
        )
        return DEFECT
    return FINISHED


def entry_point() -> None:
    """Runs the command as the console script `dps-train`."""
    run(main)


if __name__ == "__main__":
    run(main)
