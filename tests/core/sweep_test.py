from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from dps_tf.core import StudySpecification, SweepSpecification, UserError, grid
from tests.made_up.specifications import specification, workload


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


def test_workload_with_a_test_set_has_it_evaluated_at_the_ends_unless_told_otherwise():
    workloads = [workload(), workload(optimizer="momentum", test="given")]
    plain, tested = grid(workloads, (8,)).studies
    assert plain.further_splits == {}
    assert tested.further_splits == {"test": "ends", "train": "ends"}
    (told,) = grid(workloads[1:], (8,), further_splits={"test": "always"}).studies
    assert told.further_splits == {"test": "always"}
    (never,) = grid(workloads[1:], (8,), further_splits={}).studies
    assert never.further_splits == {}


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
        ({"batch_sizes": (0,)}, "batch_size is 0"),
        ({"batch_sizes": ("8",)}, "batch_size is '8'"),
        ({"seeds": (-1,)}, "seed is -1"),
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
        specification(name="a-b", optimizer="c"),
        specification(name="a", optimizer="b-c"),
    ]
    assert twins[0].cell != twins[1].cell
    with pytest.raises(UserError, match="a-b-c-none"):
        SweepSpecification(tuple(twins))


WIDTH = "workload.network_arguments.width"
SMOOTHING = "workload.fixed.label_smoothing"


def test_axes_change_what_they_name_and_nothing_else():
    plain = grid([workload(network_arguments={"depth": 2})], (8, 16)).studies
    axes = {WIDTH: (16, 32), SMOOTHING: [0, 0.1], "pruning.scope": ("layer",)}
    found = grid([plain[0].workload], (8, 16), axes=axes).studies
    assert len(found) == 2 * 2 * 2
    for study in found:
        told = dict(study.cell.axes)
        width = study.workload.network_arguments["width"]
        smoothing = study.workload.fixed["label_smoothing"]
        assert told[WIDTH] == str(width)
        assert float(told[SMOOTHING]) == smoothing
        assert isinstance(smoothing, float)
        assert study.pruning.scope == told["pruning.scope"] == "layer"
        (origin,) = [p for p in plain if p.cell == replace(study.cell, axes=())]
        without = {
            name: text
            for name, text in study.identity().items()
            if "width" not in name and "smoothing" not in name and "scope" not in name
        }
        empty = {"workload.fixed", "pruning.scope"}
        expected = {k: v for k, v in origin.identity().items() if k not in empty}
        assert without == expected
    assert {s.fingerprint for s in found}.isdisjoint(s.fingerprint for s in plain)
    assert len({study.fingerprint for study in found}) == len(found)


def test_a_study_with_axes_comes_back_from_json():
    (study,) = grid([workload()], (8,), axes={WIDTH: [[64, 32]]}).studies
    written = json.loads(json.dumps(study.to_json()))
    assert StudySpecification.from_json(written).fingerprint == study.fingerprint
    assert study.cell.axes == ((WIDTH, "[64, 32]"),)


def test_axes_under_a_name_are_of_that_workload_or_optimizer_only():
    two = [workload(), workload(optimizer="adam")]
    found = grid(two, (8,), axes={"adam": {WIDTH: (1, 2)}, "tiny": {SMOOTHING: (0.1,)}})
    told = [
        (s.cell.optimizer, tuple(dict(s.cell.axes).values())) for s in found.studies
    ]
    assert told == [("sgd", ("0.1",)), ("adam", ("0.1", "1")), ("adam", ("0.1", "2"))]


@pytest.mark.parametrize(
    ("axes", "named"),
    [
        ({"width": (1,)}, "'width' is no value of a workload"),
        ({WIDTH: 16}, "it must be a list of values"),
        ({WIDTH: ()}, "it must be a list of values"),
        ({WIDTH: (16, 16)}, "width-16 twice"),
        ({WIDTH: (object(),)}, "cannot be the value of an axis"),
        ({"sgdd": {WIDTH: (16,)}}, "did you mean 'sgd'"),
        ({"goal.threshold": (0.1,)}, "'goal.threshold' is no value of a workload"),
        ({"workload.goal": (0.1,)}, "names no value that can be an axis"),
        ({"workload.netwrk": ("mlp",)}, "did you mean 'network'"),
        (
            {"workload.network_arguments": (1,)},
            "write workload.network_arguments.width",
        ),
        ({"workload.network.width": (1,)}, "write workload.network."),
        ({"workload.order": ("random",)}, "order 'random' is unknown"),
        ({"workload.fixed.learning_rate": (1.0,)}, "both tuned and fixed"),
        ({"workload.fixed.momentum": ("high",)}, "'high'"),
    ],
)
def test_axes_that_make_no_sense_are_one_sentence(axes, named):
    with pytest.raises(UserError) as caught:
        grid([workload()], (8,), axes=axes)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
