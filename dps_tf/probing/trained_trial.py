"""A trained trial of a sweep: its Keras model, with its weights and masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dps_tf._keras import keras
from dps_tf.core import StudySpecification, UserError, derive_seed
from dps_tf.models import initial_point
from dps_tf.probing.replay import dataset_of
from dps_tf.sparsity import prunable, save_sparse, tfmot
from dps_tf.sparsity.sparse_model import table
from dps_tf.store import FileSystem, State, StudyReader, SweepReader, trial_points
from dps_tf.training import Task
from dps_tf.tuning import build
from dps_tf.tuning.build import Pruner, is_scheduled

BEST = "best"
"""Names the trial that met the goal first."""


@dataclass(frozen=True)
class TrainedTrial:
    """A trial as it was when its newest state was kept.

    Attributes:
        cell: name of its cell.
        trial: its number.
        step: updates it has made.
        point: its metaparameters.
        model: the network, with the weights that the trial is evaluated at; those
            outside of the masks are zero.
        masks: 0/1, by the names of the trainable variables; ones for a dense cell.
        about: the cell as a JSON object.
        prunable: the set of variables that sparsity counts.
        problems: sentences about damaged files that were passed over.
    """

    cell: str
    trial: int
    step: int
    point: Mapping[str, float]
    model: keras.Model
    masks: Mapping[str, np.ndarray]
    about: Mapping[str, Any]
    prunable: str
    problems: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Returns which trial it is, and the size of its network."""
        values = ", ".join(f"{name} {value:.4g}" for name, value in self.point.items())
        trained = sum(mask.size for mask in self.masks.values())
        kept = sum(int(mask.sum()) for mask in self.masks.values())
        return (
            f"trial {self.trial} of {self.cell}, after {self.step:,} steps\n"
            f"  point: {values}\n"
            f"  model: {trained:,} trainable parameters, {kept:,} inside of the masks\n"
            "  .model is the Keras model, .weights and .masks are arrays by name"
        )

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """The trained weights by name, `layer/variable`, as copies."""
        trained = self.model.trainable_variables
        return {
            role.name: variable.numpy()
            for role, variable in zip(prunable.roles(self.model), trained, strict=True)
        }

    def save(self, out: str) -> str:
        """Writes weights and masks to a folder; returns its sparsity by layer, as text.

        Raises:
            UserError: the folder holds something else.
        """
        about = {"cell": self.about, "trial": self.trial, "step": self.step}
        masks = list(self.masks.values())
        found = save_sparse(self.model, masks, out, self.prunable, about)
        return (
            f"{self.cell}, trial {self.trial}, after {self.step} steps:\n"
            f"{table(found)}\nsaved in {out}"
        )


def trained_trial(
    files: FileSystem,
    sweep: SweepReader,
    cell: str,
    trial: str = BEST,
    data_dir: str | None = None,
) -> TrainedTrial:
    """Returns a trial with the weights of its newest state.

    Args:
        files: where the sweep is.
        sweep: its reader.
        cell: name of one of its cells.
        trial: number of a trial whose state is kept, or `best`.
        data_dir: folder of prepared data sets: they give the shape of the network, and
            the examples of scores that are not in the sweep's cache.

    Raises:
        UserError: unknown cell or trial, no kept state, or other data.
    """
    study = sweep.study(cell)
    specification = study.trained()
    number = _trial_number(study, cell, trial)
    state, damaged = _state(study, cell, number)
    dataset = dataset_of(study, data_dir)
    task = build.build_task(specification.workload, dataset)
    model = task.network()
    model.set_weights(state.arrays[: len(model.weights)])
    if is_scheduled(specification):
        masks = _tfmot_masks(specification, state, model)
    else:
        prune = Pruner(specification, dataset, sweep.layout.scores, files)
        seed = derive_seed(specification.cell.seed, number, "initial point")
        masks = prune(number, initial_point(model, seed)).masks or ()
    point = trial_points(specification, study.history, number + 1)[number]
    _take_averages(model, task, state, point, masks)
    names = [role.name for role in prunable.roles(model)]
    return TrainedTrial(
        cell,
        number,
        state.step,
        point,
        model,
        dict(zip(names, masks, strict=True)),
        specification.cell.to_json(),
        specification.pruning.prunable,
        (*sweep.problems, *damaged),
    )


def _take_averages(
    model: keras.Model,
    task: Task,
    state: State,
    point: Mapping[str, float],
    masks: Sequence[np.ndarray],
) -> None:
    """Gives a network the averaged weights that its trial is evaluated at, if any."""
    optimizer, trained = task.optimizer(), model.trainable_variables
    optimizer.build(trained)
    if not optimizer.averages_weights:
        return
    optimizer.set_metaparameters(task.objective.split_point(point)[1])
    optimizer.iterations.assign(state.step)
    first = len(model.weights)
    for place, slot in enumerate(optimizer.slots, first):
        slot.assign(state.arrays[place])
    averages = optimizer.averaged_weights()
    for variable, average, mask in zip(trained, averages, masks, strict=True):
        variable.assign(average * mask)


def _trial_number(study: StudyReader, cell: str, trial: str) -> int:
    """Returns the number of the trial that the user named."""
    if trial != BEST:
        if not trial.isdecimal():
            raise UserError(
                f"trial {trial!r} is no trial: give a number from 0, or 'best'."
            )
        return int(trial)
    best = study.best_trial()
    if best is None:
        raise UserError(
            f"no trial of {cell} has reached the goal, so none is best: give a number."
        )
    return best


def _state(study: StudyReader, cell: str, trial: int) -> tuple[State, Sequence[str]]:
    """Returns the newest kept state of a trial, and what is damaged of newer ones."""
    store = study.states
    state, problems = store.load(trial)
    if state is not None:
        return state, problems
    kept = ", ".join(map(str, store.trials())) or "none (they were discarded)"
    damage = "".join(f"{problem} " for problem in problems)
    raise UserError(
        f"trial {trial} of {cell} has no kept state: {damage}trials that have one: "
        f"{kept}."
    )


def _tfmot_masks(
    specification: StudySpecification, state: State, model: keras.Model
) -> Sequence[np.ndarray]:
    """Returns the masks that tfmot left in a trial; makes pruned weights zero."""
    cell, pruning = specification.cell, specification.pruning
    wrapper = tfmot.wrap_with_schedule(
        model,
        cell.sparsity_method,
        cell.sparsity,
        pruning,
        specification.workload.step_budget,
    )
    masks = tfmot.masks_in_state(wrapper, state.arrays)
    wrapper.check_reached(state.step)
    model.set_weights(prunable.masked(model, model.get_weights(), masks))
    return masks
