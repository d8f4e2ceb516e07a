"""The studies of a grid of cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dps_tf.core.cell import DENSE, Cell, check_sparsity
from dps_tf.core.errors import UserError
from dps_tf.core.study import FURTHER_SPLITS, StudySpecification
from dps_tf.core.workload import Workload


@dataclass(frozen=True)
class SweepSpecification:
    """What a sweep measures: one study per cell, in the order of running.

    Attributes:
        studies: with distinct cells.
    """

    studies: tuple[StudySpecification, ...]

    def __post_init__(self) -> None:
        names = [study.cell.name for study in self.studies]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UserError(f"the grid holds {twice[0]} twice: list every value once.")
        if not names:
            raise UserError("the grid is empty: give at least one batch size.")

    @property
    def max_trials(self) -> int:
        """Trials that the sweep may start at most."""
        return sum(study.rule.draws_limit for study in self.studies)

    @property
    def max_steps(self) -> int:
        """Steps that the sweep may cost at most: every trial to its budget."""
        return sum(s.rule.draws_limit * s.rule.last_evaluation for s in self.studies)

    @property
    def max_examples(self) -> int:
        """Training examples that the sweep may cost at most, evaluations left out."""
        return sum(
            s.rule.draws_limit * s.rule.last_evaluation * s.cell.batch_size
            for s in self.studies
        )


def grid(
    workloads: Sequence[Workload],
    batch_sizes: Sequence[int],
    *,
    sparsities: Sequence[float] = (0.0,),
    sparsity_methods: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    further_splits: Mapping[str, str] | None = None,
    **study: Any,
) -> SweepSpecification:
    """Returns the studies of every combination; dense cells once, not once a method.

    Args:
        workloads: one for each optimizer, or other data sets and networks.
        batch_sizes: global batch sizes.
        sparsities: zero fractions of the prunable parameters.
        sparsity_methods: methods for the sparsities above 0.
        seeds: study seeds; each repeats every study from other draws.
        further_splits: see StudySpecification; by default, of a workload with a test
            set, that and a part of the training split at the ends, and else nothing.
        study: further fields of every StudySpecification.
    """
    for sparsity in sparsities:
        check_sparsity(sparsity)
    if any(sparsity != 0 for sparsity in sparsities) and not sparsity_methods:
        raise UserError(
            f"sparsities {tuple(sparsities)} need a method: bind "
            "sweep.sparsity_methods, for example to ('snip',)."
        )

    def splits_of(workload: Workload) -> Mapping[str, str]:
        if further_splits is None and workload.test != "none":
            return dict.fromkeys(FURTHER_SPLITS, "ends")
        return further_splits or {}

    cells = [
        (workload, Cell(workload.name, workload.optimizer, method, seed, size, s))
        for seed in seeds
        for s in sparsities
        for method in ((DENSE,) if s == 0 else sparsity_methods)
        for workload in workloads
        for size in batch_sizes
    ]
    return SweepSpecification(
        tuple(
            StudySpecification(
                cell, workload, further_splits=splits_of(workload), **study
            )
            for workload, cell in cells
        )
    )
