"""The columns of every table, the seam between training and analysis.

Kinds of columns: `text`, `whole` (int64), `number` (float64, NaN where unknown) and
`flag` (bool); `text?` and `whole?` may be missing (NA).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dps_tf.core.cell import CELL_KEY, CELL_TYPES, cell_key, is_axis
from dps_tf.core.workload import QUASI_RANDOM

Column = tuple[str, str]

_KINDS = {str: "text", int: "whole", float: "number"}
_IDENTITY: tuple[Column, ...] = tuple(
    (name, _KINDS[CELL_TYPES[name]]) for name in CELL_KEY
)
PRECISION: Column = ("precision", "text")
"""In a sweep a column of the studies alone: a cell is there in one precision."""


@dataclass(frozen=True)
class TableSchema:
    """Columns of a table and the order of its rows.

    A table whose cells have further axes has a column of text for each of them, behind
    those of CELL_KEY, and its rows are ordered by them there.

    Attributes:
        name: of the table.
        columns: (name, kind), in order; those of CELL_KEY first.
        sort_by: names of the columns that order the rows; unique together.
        more_numbers: whether further columns may follow, all of kind `number`.
        first_numbers: which of the further columns come first; the others are sorted.
    """

    name: str
    columns: tuple[Column, ...]
    sort_by: tuple[str, ...]
    more_numbers: bool = False
    first_numbers: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of `columns`, in order."""
        return tuple(name for name, _ in self.columns)

    def all_columns(self, present: Iterable[str]) -> tuple[Column, ...]:
        """Returns the columns of a table that has the given names, in order.

        Raises:
            ValueError: a column is missing, or one is there that must not.
        """
        given = set(present)
        known = set(self.names)
        if missing := sorted(known - given):
            raise ValueError(f"The table {self.name} lacks the columns {missing}.")
        axes = [name for name in cell_key(given) if is_axis(name)]
        further = given - known - set(axes)
        if further and not self.more_numbers:
            raise ValueError(
                f"The table {self.name} has the unknown columns {sorted(further)}."
            )
        first = [name for name in self.first_numbers if name in further]
        rest = sorted(further - set(first))
        cell = len(CELL_KEY)
        return (
            *self.columns[:cell],
            *((name, "text") for name in axes),
            *self.columns[cell:],
            *((name, "number") for name in (*first, *rest)),
        )

    def ordering(self, present: Iterable[str]) -> list[str]:
        """Returns the columns that order the rows of a table with the given names."""
        return [*cell_key(present), *self.sort_by[len(CELL_KEY) :]]

    def of_several_sweeps(self) -> TableSchema:
        """Returns the schema of a table of trials of several sweeps.

        Of these the same cell may be there in several precisions.
        """
        cell = len(CELL_KEY)
        before, after = self.columns[:cell], self.columns[cell:]
        return replace(
            self,
            columns=(*before, PRECISION, *after),
            sort_by=(*self.sort_by[:cell], PRECISION[0], *self.sort_by[cell:]),
        )


STUDIES = TableSchema(
    "studies",
    (
        *_IDENTITY,
        PRECISION,
        ("goal", "text"),
        ("goal_metric", "text"),
        ("goal_threshold", "number"),
        ("goal_direction", "text"),
        ("goal_inclusive", "flag"),
        ("goal_in_a_row", "whole"),
        ("goal_mean_of", "whole"),
        ("step_budget", "whole"),
        ("points", "whole"),
        ("count", "text"),
        ("finishers", "whole"),
        ("schedule", "text"),
        ("training_examples", "whole"),
        ("evaluation_interval", "whole"),
        ("evaluation_examples", "whole"),
        ("space", "text"),
        ("closed", "flag"),
        ("prunable", "text"),
        ("draws_exhausted", "flag"),
        ("oracle", "text"),
    ),
    CELL_KEY,
)
"""One row per cell: what was asked of its study.

Columns:
    precision: types in which the network computes; see `core.study.PRECISIONS`.
    goal: the goal as a sentence, for example `validation/accuracy >= 0.99`.
    goal_metric, goal_threshold, goal_direction, goal_inclusive, goal_in_a_row,
    goal_mean_of: the parts of the goal; see `core.goal.Goal`.
    step_budget: steps a trial may run.
    points: N, the trials (or feasible trials) that the study pays for.
    count: `all` or `feasible`: which trials N counts.
    finishers: m; K_(1) to K_(m) are exact.
    schedule: `race` or `exhaustive`.
    training_examples: size of the training split.
    evaluation_interval: steps between evaluations; 0 where they are irregular, as in
        archives.
    evaluation_examples: size of the validation split.
    space: tuned metaparameters with scales and ranges, as JSON.
    closed: whether every trial is decided; otherwise K* may still fall.
    prunable: which parameters pruning may remove, `none` in a dense cell.
    draws_exhausted: whether the limit on draws was met before N feasible trials.
    oracle: what chose the points: `quasi_random`, or a keras-tuner class.
"""

STUDY_DEFAULTS = {"goal_in_a_row": 1, "goal_mean_of": 1, "oracle": QUASI_RANDOM}
"""Values that the record of a closed study leaves out, as older ones lack them."""

TRIALS = TableSchema(
    "trials",
    (
        *_IDENTITY,
        ("trial", "whole"),
        ("outcome", "text"),
        ("steps_to_result", "whole?"),
        ("bracket_low", "whole?"),
        ("end_step", "whole"),
        ("diverged_step", "whole?"),
        ("error", "text?"),
        ("initial_seed", "whole"),
        ("order_seed", "whole"),
        ("realised_sparsity", "number"),
        ("layers", "text"),
    ),
    (*CELL_KEY, "trial"),
    more_numbers=True,
)
"""One row per trial, with one further column per metaparameter.

Columns:
    trial: number of the trial, from 0; point i is the same however many are drawn.
    outcome: `complete` (met the goal), `incomplete` (budget spent), `censored` (stopped
        because others had won), `infeasible` (diverged) or `failed` (error).
    steps_to_result: first evaluated step that met the goal; missing unless complete.
    bracket_low: the evaluation before it: the goal was met in
        (bracket_low, steps_to_result].
    end_step: last step that the record covers.
    diverged_step: first step with a loss or metric that is not finite; missing unless
        infeasible.
    error: text of the error; missing unless failed.
    initial_seed: of the initial weights.
    order_seed: of the order of the examples.
    realised_sparsity: zero fraction of the prunable parameters as it came out.
    layers: name, size and kept entries of each prunable variable, as JSON.
"""

CURVES = TableSchema(
    "curves",
    (*_IDENTITY, ("trial", "whole"), ("step", "whole"), ("is_bound", "flag")),
    (*CELL_KEY, "trial", "step"),
    more_numbers=True,
    first_numbers=(
        "validation/classification_error",
        "validation/cross_entropy",
        "validation/accuracy",
        "train/loss",
    ),
)
"""One row per evaluation, with one further column per metric, named `split/metric`.

Columns:
    trial: number of the trial.
    step: updates made before the evaluation.
    is_bound: whether the evaluation was stopped once the goal was out of reach: its
        metrics are then bounds (`sweep.evaluation_mode = 'goal'`).
"""

MEASUREMENTS = TableSchema(
    "measurements",
    (
        *_IDENTITY,
        ("trial", "whole"),
        ("step", "whole"),
        ("quantity", "text"),
        ("value", "number"),
        ("examples", "whole"),
    ),
    (*CELL_KEY, "trial", "step", "quantity"),
)
"""One row per measurement of smoothness or noise, made by `dps_tf.measure`.

Columns:
    trial: number of the trial that was trained again.
    step: update at which it was measured.
    quantity: what was measured; see `probing.quantities`.
    value: of the quantity.
    examples: training examples it was measured on.
"""

WORK = TableSchema(
    "work",
    (
        *_IDENTITY,
        ("trial", "whole?"),
        ("quantity", "text"),
        ("value", "number"),
    ),
    (*CELL_KEY, "trial", "quantity"),
)
"""One row per (trial, quantity): what was executed. Never a result.

Columns:
    trial: number of the trial; missing for the whole study.
    quantity: `steps`, `evaluations`, `seconds` and the like; `floor_` before a name
        means what the rule of the race needs at least.
    value: of the quantity.
"""

SCHEMAS = {
    schema.name: schema for schema in (STUDIES, TRIALS, CURVES, MEASUREMENTS, WORK)
}
"""All tables by name."""
