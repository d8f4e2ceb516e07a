"""Trained trials of a sweep as Keras models with weights and masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from dps_tf import objectives, optim
from dps_tf._keras import keras, own_settings
from dps_tf.core import StudySpecification, UserError, derive_seed
from dps_tf.models import initial_point
from dps_tf.probing.replay import dataset_of, network_of
from dps_tf.sparsity import (
    Pruner,
    prunable,
    prunes_while_training,
    save_sparse,
    tfmot,
)
from dps_tf.sparsity.sparse_model import table
from dps_tf.store import FileSystem, State, StudyReader, SweepReader, trial_points

BEST = "best"
"""Name of the trial that met the goal first."""


@dataclass(frozen=True)
class TrainedTrial:
    """A trial at the step of its newest kept state.

    Attributes:
        cell: name of the trial's cell.
        trial: number of the trial.
        step: number of updates made.
        point: metaparameters of the trial, by name.
        model: the network, with the weights that the trial is evaluated at; weights
            outside of the masks are zero.
        masks: 0/1, by the names of the trainable variables; ones for a dense cell.
        about: the cell as a JSON object.
        prunable: name of the set of variables that sparsity counts.
        problems: sentences about damaged files that were skipped.
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
        """Returns a summary: the trial, its point and the size of its network."""
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
        """Writes weights and masks to a folder; returns the sparsity by layer as text.

        Raises:
            UserError: the folder holds other files.
        """
        about = {"cell": self.about, "trial": self.trial, "step": self.step}
        masks = list(self.masks.values())
        layers = save_sparse(self.model, masks, out, self.prunable, about)
        return (
            f"{self.cell}, trial {self.trial}, after {self.step} steps:\n"
            f"{table(layers)}\nsaved in {out}"
        )


@own_settings()
def trained_trial(
    files: FileSystem,
    sweep: SweepReader,
    cell: str,
    trial: str = BEST,
    data_dir: str | None = None,
) -> TrainedTrial:
    """Returns a trial with the weights of its newest state.

    Args:
        files: file system of the sweep.
        sweep: reader of the sweep.
        cell: name of a cell of the sweep.
        trial: number of a trial with a kept state, or `best`.
        data_dir: folder of prepared data sets. The data set decides the shape of the
            network, and has the examples of scores that are not in the sweep's cache.

    Raises:
        UserError: there is no such cell or trial, no kept state of the trial, or the
            data set is not the one that the trial was trained on.
    """
    study = sweep.study(cell)
    specification = study.trained()
    number = _trial_number(study, cell, trial)
    state, damaged = _state(study, cell, number)
    dataset = dataset_of(study, data_dir)
    model = network_of(study, dataset)
    model.set_weights(state.arrays[: len(model.weights)])
    if prunes_while_training(specification.cell):
        masks = _tfmot_masks(specification, state, model)
    else:
        prune = Pruner(specification, dataset, sweep.layout.scores, files)
        seed = derive_seed(specification.cell.seed, number, "initial point")
        held = prune(number, initial_point(model, seed)).masks or ()
        masks = [mask.astype(np.float32) for mask in held]
    point = trial_points(specification, study.history, number + 1)[number]
    for place, outside in prunable.entries_outside(model, state.arrays, masks or ()):
        raise UserError(
            f"{cell}, trial {number}: {len(outside)} entries of "
            f"{model.trainable_variables[place].name} are outside of the masks and not "
            "zero, so the network is not the one that was trained: its function must "
            "return the same network, with the same initial weights, each time."
        )
    objective = objectives.build_for(specification.workload, dataset.token_bytes)
    optimizer = optim.build_for(specification.workload, objective.reads)
    own = objective.split_point(point)[1]
    _take_averages(model, optimizer, state, own, masks)
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
    optimizer: optim.Optimizer,
    state: State,
    point: Mapping[str, float],
    masks: Sequence[np.ndarray],
) -> None:
    """Sets a network's weights to their averages, if the optimizer averages weights."""
    if not optimizer.averages_weights:
        return
    values, trained = optimizer.values(point), model.trainable_variables
    slots = optimizer.named(state.arrays[len(model.weights) :], trained)
    given = {name: tf.constant(value, tf.float32) for name, value in values.items()}
    averages = optimizer.evaluated(slots, trained, given, tf.constant(state.step))
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
    """Returns (newest readable state of a trial, problems of damaged newer states)."""
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
    """Returns the masks in a state of tfmot; sets the model's pruned weights to 0."""
    cell, pruning = specification.cell, specification.pruning
    gradual = tfmot.with_schedule(
        model,
        cell.sparsity_method,
        cell.sparsity,
        pruning,
        specification.workload.step_budget,
    )
    weights, own = model.weights, state.arrays[-len(gradual.places) :]
    gradual.check_reached(state.step, weights, own)
    masks = gradual.all_masks(weights, own)
    model.set_weights(prunable.masked(model, model.get_weights(), masks))
    return masks
