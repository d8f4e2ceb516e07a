"""The columns of every table: the interface between training and analysis.

Kinds of columns: `text`, `whole` (int64), `number` (float64, NaN where unknown) and
`flag` (bool); `text?` and `whole?` may be missing (NA).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dps_tf.core import CELL_KEY, CELL_TYPES, cell_key, is_axis

Column = tuple[str, str]

_KINDS = {str: "text", int: "whole", float: "number"}
_IDENTITY: tuple[Column, ...] = tuple(
    (name, _KINDS[CELL_TYPES[name]]) for name in CELL_KEY
)
PRECISION: Column = ("precision", "text")
"""Column that a sweep has in `studies` alone, as all of a cell has one precision."""


@dataclass(frozen=True)
class TableSchema:
    """Columns of a table and the order of its rows.

    If its cells have further axes, a table has a text column for each axis after the
    columns of CELL_KEY. The axes come at that place in the order of the rows too.

    Attributes:
        name: name of the table.
        columns: (name, kind), in order; the columns of CELL_KEY come first.
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
        """Returns the columns of these names in order; ValueError for unknown ones."""
        given = set(present)
        own = set(self.names)
        if missing := sorted(own - given):
            raise ValueError(f"The table {self.name} lacks the columns {missing}.")
        axes = [name for name in cell_key(given) if is_axis(name)]
        further = given - own - set(axes)
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

        Several sweeps may hold the same cell in several precisions.
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
        ("search_mode", "text"),
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
"""One row per cell, with the specification of its study."""

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
"""One row per trial, with one further column per metaparameter."""

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
"""One row per evaluation, with one further column per metric, named `split/metric`."""

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
"""One row per measurement of smoothness or noise, made by `dps_tf.measure`."""

WORK = TableSchema(
    "work",
    (*_IDENTITY, ("trial", "whole?"), ("quantity", "text"), ("value", "number")),
    (*CELL_KEY, "trial", "quantity"),
)
"""One row per trial and quantity of executed work, which is no result."""

SCHEMAS = {
    schema.name: schema for schema in (STUDIES, TRIALS, CURVES, MEASUREMENTS, WORK)
}
"""All tables by name."""

MEANINGS = {
    "workload": "Name of data set and network together.",
    "optimizer": "Name of the optimizer family.",
    "sparsity_method": "How the network is pruned; `none` for dense cells.",
    "seed": "Seed of the study: of its points, initial weights and orders of examples.",
    "batch_size": "Global batch size B, examples per update.",
    "sparsity": "Zero fraction of the prunable parameters that was asked for.",
    "precision": "Type in which the network computes.",
    "goal": "What a trial has to reach, as text.",
    "goal_metric": "Column of `curves` that the goal is on.",
    "goal_threshold": "Value of that metric that meets the goal.",
    "goal_direction": "`minimize` or `maximize`.",
    "goal_inclusive": "Whether a value equal to the threshold meets the goal.",
    "goal_in_a_row": "Evaluations in a row at which the goal has to be met.",
    "goal_mean_of": "Evaluations whose running mean has to meet the goal.",
    "step_budget": "Steps that a trial may run.",
    "points": "Trials (or feasible trials, see `count`) that were asked for.",
    "count": "Whether `points` counts `all` trials or `feasible` ones.",
    "finishers": "m: the race is decided once K_(1) to K_(m) are known.",
    "search_mode": "`race`, or `exhaustive` where trials did not wait for each other.",
    "training_examples": "Size of the training split; 0 where it is not known.",
    "evaluation_interval": "Steps between evaluations; 0 where they are irregular.",
    "evaluation_examples": "Size of the validation split; 0 where it is not known.",
    "space": "The tuned metaparameters as JSON: name, scale, low, high.",
    "closed": "Whether the study is finished.",
    "prunable": "Which variables sparsity counts; `none` in dense cells.",
    "draws_exhausted": "Whether `feasible` points were asked for and draws ran out.",
    "oracle": "What chose the points: `quasi_random`, or a class of keras-tuner.",
    "trial": "Number of the trial in its study, from 0.",
    "outcome": "`complete` (met the goal), `incomplete` (spent the budget), `censored` "
    "(ended before it could answer), `infeasible` (diverged) or `failed`.",
    "steps_to_result": "First evaluated step at which the trial met the goal; else NA.",
    "bracket_low": "Step of the evaluation before `steps_to_result`, or 0.",
    "end_step": "Last step of the trial's record.",
    "diverged_step": "Step of a loss, metric or pruned weight not finite; else NA.",
    "error": "Text of the error that ended a trial; NA for others.",
    "initial_seed": "Seed of the trial's initial weights; -1 where it is not known.",
    "order_seed": "Seed of the trial's order of examples; -1 where it is not known.",
    "realised_sparsity": "Zero fraction that the trial's masks have.",
    "layers": "Parameters, kept ones and emptied layers of the trial's masks, as JSON.",
    "step": "Updates made before the evaluation or measurement.",
    "is_bound": "Whether validation metrics are bounds that do not count as meeting "
    "the goal.",
    "quantity": "Name of what was measured or executed.",
    "value": "The measured or executed amount.",
    "examples": "Training examples that a measurement is over.",
}
"""The meaning of every column of the tables. Besides these, `trials` has a column for
each metaparameter, and `curves` one for each metric, `split/name`."""
