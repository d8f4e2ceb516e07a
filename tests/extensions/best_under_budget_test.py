"""Is the best value under a budget, as the page computes it, that of a plain loop?"""

from __future__ import annotations

from tests.extensions.best_under_budget import best_under_budget
from tests.made_up.specifications import ERROR
from tests.made_up.sweeps import Sweep, make


def test_it_is_the_least_evaluation_of_all_trials_within_the_budget():
    tables = make(Sweep(sparsities=(0.0,), batch_sizes=(8, 64), points=6))
    steps = int(tables.curves["step"].median())
    least: dict[int, float] = {}
    for row in tables.curves.to_dict("records"):
        if row["step"] <= steps and not row["is_bound"]:
            size = row["batch_size"]
            least[size] = min(row[ERROR], least.get(size, float("inf")))
    assert best_under_budget(tables, steps, ERROR).to_dict() == least
    shorter = best_under_budget(tables, steps // 2, ERROR)
    assert (shorter > best_under_budget(tables, steps, ERROR)[shorter.index]).any()
