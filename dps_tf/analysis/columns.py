"""What every column of the tables means that `load` returns, for readers of them.

The columns of what training writes are described by the store's schemas; here are those
that analysis adds. Nothing heavy is imported: the texts are part of `help`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping

from dps_tf.core.cell import is_axis
from dps_tf.core.trial import OUTCOMES
from dps_tf.store.schemas import MEANINGS, SCHEMAS

_OF_RESULTS = {
    "goal": "What was reduced for, as text.",
    "steps_to_result": "K*: the least steps_to_result of the cell's trials; NA where "
    "none is known to have met the goal.",
    "bracket_low": "K* lies in (bracket_low, steps_to_result].",
    "best_trial": "Number of the trial that K* is of; its metaparameters follow.",
    "trials": "Trials of the study; the five outcomes add up to it.",
    **{name: f"Trials that are {name}." for name in OUTCOMES},
    "at_boundary": "Tuned names whose best value lies at an end of its range.",
    "steps_bound": "What is known of K* where that is only a bound; else empty.",
    "steps_low": "Least K* that the records allow; NA for none.",
    "steps_high": "Greatest K* that the records allow; NA for none.",
    "finishers_known": "How many of K_(1), K_(2), ... are exact.",
    "infeasible_share": "Share of the trials that diverged.",
    "lone_winner": "Whether K_(2) lies far above K*; NA where that is not known.",
    "interval_over_kstar": "Evaluation interval / K*: the resolution of K*.",
    "first_evaluation": "Share of the trials that met the goal at their first one.",
    "realised_sparsity": "That of the best trial.",
    "emptied_layers": "Layers of the best trial that kept no parameter.",
    **{
        name: MEANINGS[name]
        for name in (
            "closed",
            "evaluation_interval",
            "step_budget",
            "training_examples",
            "draws_exhausted",
        )
    },
}
_OF_BOUNDED = {
    "earliest": "Least step at which the trial can have met the goal; infinite: never.",
    "latest": "Greatest such step; equal to `earliest` where the record is exact.",
}
_OF_REPEATS = {
    name: MEANINGS[name] for name in ("outcome", "steps_to_result", "bracket_low")
} | {
    "trial": "Trial of the sweep whose point was trained again.",
    "repeat": "Number of the repeat, from 0.",
}
_OWN: Mapping[str, Mapping[str, str]] = {
    "results": _OF_RESULTS,
    "bounded": _OF_BOUNDED,
    "repeats": {**_OF_BOUNDED, **_OF_REPEATS},
}
_ORDER = ("results", *SCHEMAS, "bounded", "repeats")
_FURTHER = {
    "trials": "a column for each metaparameter",
    "curves": "a column for each metric, `split/name`",
    "results": "the best trial's metaparameters, and the columns of the cell",
    "bounded": "all columns of `trials`, for the goal of `results`",
    "repeats": "the outcome of each repeat, as in `trials`",
}


def meaning(table: str, column: str, metrics: Iterable[str] = ()) -> str:
    """Returns what a column of a table holds, as a sentence.

    The table is a field of `Tables`; `metrics` names the columns of metrics.
    """
    own = _OWN.get(table, {}).get(column) or MEANINGS.get(column)
    if own is not None:
        return own
    if is_axis(column):
        return "Value of this further axis, as text; empty where a cell has none."
    if column in metrics:
        return "Metric of this evaluation, `split/name`; NaN where it was not taken."
    return "Metaparameter of the trial."


def entries(table: str) -> dict[str, str]:
    """Returns the meaning of each column of a table that is always there."""
    names = SCHEMAS[table].names if table in SCHEMAS else tuple(_OWN[table])
    return {name: meaning(table, name) for name in names}


def documentation() -> str:
    """Returns what all columns hold, as lines that `help` can show."""
    lines = []
    for table in _ORDER:
        lines += ["", f"{table}:"]
        for name, text in entries(table).items():
            told = f"{name}: {text}"
            lines.append(textwrap.fill(told, 84, subsequent_indent="    "))
        if table in _FURTHER:
            lines.append(f"and {_FURTHER[table]}.")
    return "\n".join(lines)
