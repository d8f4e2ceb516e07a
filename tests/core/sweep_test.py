from __future__ import annotations

import itertools

import pytest

from dps_tf.core.errors import UserError
from dps_tf.core.sweep import SweepSpecification, grid
from tests.core.specifications import specification, workload


def test_grid_is_every_combination_with_dense_cells_once():
    workloads = [workload(optimizer="sgd"), workload(optimizer="momentum")]
    sweep = grid(
        workloads,
        (8, 64),
        sparsities=(0.0, 0.5, 0.9),
        sparsity_methods=("snip", "grasp"),
        seeds=(0, 1),
    )
    found = {
        (c.optimizer, c.batch_size, c.sparsity, c.sparsity_method, c.seed)
        for c in (study.cell for study in sweep.studies)
    }
    dense = set(itertools.product(("sgd", "momentum"), (8, 64), (0.0,), ("none",)))
    pruned = set(
        itertools.product(("sgd", "momentum"), (8, 64), (0.5, 0.9), ("snip", "grasp"))
    )
    expected = {(*cell, seed) for cell in dense | pruned for seed in (0, 1)}
    assert found == expected
    assert len(sweep.studies) == len(expected) == 40


def test_studies_carry_what_the_sweep_says():
    sweep = grid([workload()], (8,), finishers=3, search_mode="exhaustive")
    assert sweep.studies == (specification(finishers=3, search_mode="exhaustive"),)


def test_largest_cost_is_every_trial_to_its_budget():
    sweep = grid([workload(points=7, step_budget=105)], (8, 64))
    assert sweep.max_trials == 14
    assert sweep.max_steps == 2 * 7 * 100
    assert sweep.max_examples == 7 * 100 * (8 + 64)
    feasible = grid([workload(points=7, count="feasible", max_draws=9)], (8,))
    assert feasible.max_trials == 9


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"batch_sizes": (8, 16, 8)}, "b8-"),
        ({"batch_sizes": ()}, "empty"),
        ({"sparsities": (0.0, 0.5)}, "sweep.sparsity_methods"),
        ({"sparsities": (1.0,), "sparsity_methods": ("snip",)}, "sparsity 1.0"),
        ({"batch_sizes": (0,)}, "batch size 0"),
        ({"batch_sizes": ("8",)}, "batch size '8'"),
        ({"seeds": (-1,)}, "seed -1"),
        ({"finishers": 0}, "finishers is 0"),
    ],
)
def test_bad_grid_is_one_sentence(arguments, named):
    with pytest.raises(UserError) as caught:
        grid([workload()], **{"batch_sizes": (8,), **arguments})
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_cells_that_would_share_a_folder_are_refused():
    twins = [
        specification(workload=workload(name="a-b", optimizer="c")),
        specification(workload=workload(name="a", optimizer="b-c")),
    ]
    assert twins[0].cell != twins[1].cell
    with pytest.raises(UserError, match="a-b-c-none"):
        SweepSpecification(tuple(twins))
