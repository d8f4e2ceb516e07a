"""Runs of Keras' `model.fit`, from the `History` objects that it returned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from dps_tf.analysis.interchange.foreign_study import COMPLETE, INCOMPLETE
from dps_tf.analysis.interchange.run_tables import Runs
from dps_tf.analysis.interchange.runs import Run, runs_of
from dps_tf.core import UserError, is_whole


def from_keras(histories: Mapping[str, Any], **options: Any) -> Runs:
    """Returns runs of `model.fit`, from the `History` objects that it returned.

    An epoch's evaluation belongs to the update at which the epoch ended. A run that
    ended before its last epoch, by early stopping or a kill, was cut off.

    Args:
        histories: by names of the user's.
        options: see `runs.runs_of`; `batch_size` is one that a history does not tell.

    Raises:
        UserError: a history does not know its steps per epoch; see also `runs_of`.
    """
    runs = (_run(name, history) for name, history in histories.items())
    return runs_of(runs, "histories of Keras", unsplit="train", **options)


def _run(name: str, history: Any) -> Run:
    steps, epochs = (history.params or {}).get("steps"), list(history.epoch)
    if not is_whole(steps, 1):
        raise UserError(
            f"the history {name!r} does not know its steps per epoch: give fit a data "
            "set of known size, or steps_per_epoch."
        )
    curve = pd.DataFrame(history.history)
    curve.insert(0, "step", [(epoch + 1) * steps for epoch in epochs])
    is_done = bool(epochs) and epochs[-1] + 1 >= history.params["epochs"]
    return Run(name, curve, status=COMPLETE if is_done else INCOMPLETE)
