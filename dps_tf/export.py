"""Saves a trained trial as Keras weights and masks: `python -m dps_tf.export ...`.

Takes the newest kept state of the trial; prints the sparsity of each layer. Load it
again with `dps_tf.sparsity.export.load_sparse`, or with Keras and NumPy alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags

from dps_tf.cli.command_line import FINISHED, run
from dps_tf.cli.sweep_files import files_of
from dps_tf.core.errors import UserError, near_matches
from dps_tf.core.seeds import derive_seed
from dps_tf.core.study import StudySpecification
from dps_tf.store.files import FileSystem
from dps_tf.store.layout import CellLayout, SweepLayout
from dps_tf.store.states import State, StateStore
from dps_tf.store.study_opening import read_specification

if TYPE_CHECKING:
    from dps_tf._keras import keras
    from dps_tf.data.dataset import Dataset

_SWEEP_DIR = flags.DEFINE_string("sweep_dir", None, "Where the sweep is kept.")
_CELL = flags.DEFINE_string("cell", None, "Name of a cell, as `status` shows it.")
_TRIAL = flags.DEFINE_integer("trial", None, "Number of the trial.", lower_bound=0)
_OUT = flags.DEFINE_string("out", None, "An empty folder; made if it is missing.")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Folder of prepared data sets.")
_IMPORT = flags.DEFINE_multi_string(
    "import", [], "A module that registers workloads of your own; may be repeated."
)


def main(argv: Sequence[str]) -> int:
    """Exports the trial that the flags name; returns the exit code 0."""
    del argv
    for flag in (_SWEEP_DIR, _CELL, _TRIAL, _OUT):
        if flag.value in (None, ""):
            raise UserError(f"--{flag.name} is missing: see --help")
    if "://" in _OUT.value:
        raise UserError(
            f"--out={_OUT.value} is on no disk of this machine: name a folder here."
        )
    for module in flags.FLAGS["import"].value:
        importlib.import_module(module)
    print(
        export_trial(
            _SWEEP_DIR.value, _CELL.value, _TRIAL.value, _OUT.value, _DATA_DIR.value
        )
    )
    return FINISHED


def export_trial(
    sweep_dir: str, cell: str, trial: int, out: str, data_dir: str | None = None
) -> str:
    """Writes the newest state of a trial to `out`; returns what to tell the user.

    Args:
        sweep_dir: of the sweep.
        cell: name of one of its cells.
        trial: number of a trial whose state is kept.
        out: folder to write.
        data_dir: folder of prepared data sets; gives the shape of the network, and
            the examples of scores that are not in the sweep's cache.
    """
    files, layout = files_of(sweep_dir), SweepLayout(sweep_dir)
    specification, facts = _study(files, layout, cell)
    state = _state(files, layout.cell(cell), cell, trial)

    from dps_tf.sparsity import export
    from dps_tf.tuning import launching, tasks

    launching.configure_threads()
    dataset = tasks.load_dataset(specification.workload, data_dir)
    if dataset.content_hash != facts["content_hash"]:
        raise UserError(
            f"the data set in --data_dir={data_dir} is not the one that {cell} was "
            "trained on: name the folder that the sweep was run with"
        )
    model = tasks.build_task(specification.workload, dataset).network()
    model.set_weights(state.arrays[: len(model.weights)])
    if specification.cell.sparsity_method.startswith("tfmot_"):
        masks = _masks_in_state(specification, state, model)
    else:
        masks = _masks(specification, dataset, trial, model, layout.scores, files)
    about = {"cell": specification.cell.to_json(), "trial": trial, "step": state.step}
    found = export.save_sparse(model, masks, out, specification.pruning.prunable, about)
    return (
        f"{cell}, trial {trial}, after {state.step} steps:\n{export.table(found)}\n"
        f"saved in {out}"
    )


def _study(
    files: FileSystem, layout: SweepLayout, cell: str
) -> tuple[StudySpecification, dict[str, Any]]:
    """Returns the specification of a cell and the facts on its data."""
    if not files.exists(layout.marker):
        raise UserError(f"{layout.root} is not the directory of a sweep")
    known = files.list_names(layout.cells)
    if cell not in known:
        raise UserError(f"cell {cell!r} is unknown: {near_matches(cell, known)}")
    stored = read_specification(files, layout.cell(cell))
    if stored is None:
        raise UserError(f"cell {cell} has no intact study: run the sweep again")
    return StudySpecification.from_json(stored["specification"]), stored["facts"]


def _state(files: FileSystem, layout: CellLayout, cell: str, trial: int) -> State:
    """Returns the newest kept state of a trial."""
    store = StateStore(files, layout.states)
    state, problems = store.load(trial)
    if state is not None:
        return state
    kept = ", ".join(map(str, store.trials())) or "none (they were discarded)"
    raise UserError(
        f"trial {trial} of {cell} has no kept state: {' '.join(problems)} trials that "
        f"have one: {kept}"
    )


def _masks(
    specification: StudySpecification,
    dataset: Dataset,
    trial: int,
    model: keras.Model,
    scores: str,
    files: FileSystem,
) -> Sequence[np.ndarray]:
    """Returns the masks that the trial was trained with; ones for a dense cell."""
    from dps_tf.models import initial_point
    from dps_tf.tuning.pruning import Pruner

    cell = specification.cell
    if cell.sparsity == 0:
        return [np.ones(v.shape, np.float32) for v in model.trainable_variables]
    prune = Pruner(specification, dataset, scores, files)
    seed = derive_seed(cell.seed, trial, "initial point")
    return prune(trial, initial_point(model, seed)).masks or ()


def _masks_in_state(
    specification: StudySpecification, state: State, model: keras.Model
) -> Sequence[np.ndarray]:
    """Returns the masks that tfmot left in a trial; makes pruned weights zero."""
    from dps_tf.sparsity import export, prunable, tfmot

    cell, pruning = specification.cell, specification.pruning
    pruned = tfmot.wrap_with_schedule(
        model,
        cell.sparsity_method,
        cell.sparsity,
        pruning.arguments,
        specification.workload.step_budget,
        pruning.prunable,
    )
    masks = export.masks_in_state(pruned, state.arrays)
    pruned.check_reached(state.step)
    model.set_weights(prunable.masked(model, model.get_weights(), masks))
    return masks


def entry_point() -> None:
    """Runs the command as the console script `dps-export`."""
    run(main)


if __name__ == "__main__":
    run(main)
