from __future__ import annotations

from dps_tf.analysis.loading import Tables


def best_under_budget(tables: Tables, steps: int, metric: str):
    """Returns the least value of each batch size within a budget of steps."""
    curves = tables.curves
    within = curves[(curves["step"] <= steps) & ~curves["is_bound"]]
    return within.groupby("batch_size")[metric].min()
