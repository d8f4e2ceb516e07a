"""The overview figure shows each measured cell once, in the panel of its curve."""

from __future__ import annotations

import importlib.util

import numpy as np
import pandas as pd
import pytest

from dps_tf.analysis.interchange.foreign_files import read_csv
from tests.packaging.source_tree import SOURCE_TREE

SCRIPT = SOURCE_TREE / "gin_configs" / "lee2021" / "overview.py"


@pytest.fixture(scope="module")
def overview():
    spec = importlib.util.spec_from_file_location("overview", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def panels(figure):
    return {axis.get_title(loc="left"): axis for axis in figure.axes}


def marks(axis):
    """Returns by (x, y) whether each mark of a panel is hollow."""
    lines = [x for x in axis.get_lines() if x.get_marker() in [*"os^dD"]]
    return {
        place: line.get_markerfacecolor() == "white"
        for line in lines
        for place in zip(*line.get_data(), strict=True)
    }


def test_cells_measured_in_both_versions_of_results_are_equal():
    again = read_csv(SCRIPT.parent / "measured_again.csv")
    assert again["seed"].eq(0).all() and again["workload"].nunique() == 2
    names = {"steps_to_result_1": "steps_to_result", "best_trial_1": "best_trial"}
    names |= {"evaluation_interval_1": "evaluation_interval"}
    tables = [
        read_csv(SCRIPT.parent / f"{n}_curves.csv") for n in ("mnist", "fashion_mnist")
    ]
    both = again.rename(columns=names).merge(pd.concat(tables))
    assert len(both) == len(again)
    assert both["steps_to_result_2"].eq(both["steps_to_result"]).all()
    assert both["best_trial_2"].eq(both["best_trial"]).all()
    alike = both[both["evaluation_interval_2"] == both["evaluation_interval"]]
    assert alike["equal_evaluations"].eq(alike["evaluations_in_both"]).all()


def test_each_bound_of_the_tables_has_its_reason(overview):
    found = overview.hollow_marks()
    recorded = read_csv(SCRIPT.parent / "hollow_marks.csv")
    pd.testing.assert_frame_equal(recorded, found, check_dtype=False)
    for name, title in overview.DATA_SETS.items():
        cells = read_csv(SCRIPT.parent / f"{name}_curves.csv")
        bounds = cells.dropna(subset=["at_boundary"])
        own = found[found["data_set"] == title]
        assert list(own["at_most"]) == list(bounds["steps_to_result"])
        for (_, cell), winner in zip(bounds.iterrows(), own["winner"], strict=True):
            assert winner.split()[0] == cell["at_boundary"]
            assert float(winner.split()[1]) == pytest.approx(
                cell[cell["at_boundary"]], rel=1e-3
            )


def test_each_cell_is_a_mark_in_the_panel_of_its_optimizer(overview, monkeypatch):
    monkeypatch.setattr(overview, "joint_fit", lambda points: {})  # takes a minute
    shown = panels(overview.draw())
    for name, title in (
        ("mnist", "MNIST to 0.02"),
        ("fashion_mnist", "Fashion-MNIST to 0.14"),
    ):
        cells = read_csv(SCRIPT.parent / f"{name}_curves.csv")
        for optimizer, word in overview.OPTIMIZERS.items():
            of_panel = cells[cells["optimizer"] == optimizer]
            steps = of_panel["steps_to_result"]
            is_bound = of_panel["at_boundary"].notna()
            # Of all seeds; a bound below the median leaves the median where it is.
            least = steps.mask(is_bound, 0)
            of_cells = of_panel.assign(least=least).groupby(["sparsity", "batch_size"])
            each = of_cells[["steps_to_result", "least"]].median()
            rows = each.reset_index("batch_size").itertuples(index=False)
            drawn = marks(shown[f"{title}, {word}"]).items()
            # Bounds of one batch size stand beside one another.
            found = {(2 ** round(np.log2(b)), k, hollow) for (b, k), hollow in drawn}
            assert found == {(b, k, least < k) for b, k, least in rows}


def test_two_batch_sizes_have_no_fit_and_no_cells_say_so(overview, tmp_path):
    cells = read_csv(SCRIPT.parent / "mnist_curves.csv")
    sgd = cells.query("optimizer == 'sgd' and sparsity == 0 and seed == 0")
    for sizes, fits in ((2, 0), (3, 1)):
        rows = sgd[sgd["batch_size"] <= 512].sort_values("batch_size")[:sizes]
        rows.to_csv(tmp_path / "mnist_curves.csv", index=False)
        shown = panels(overview.draw(tmp_path))
        assert len(shown["MNIST to 0.02, SGD"].collections) == 1 + fits
        [text] = shown["MNIST to 0.02, momentum"].texts
        assert text.get_text() == "not measured"
        assert overview.constants(rows).empty


def test_constants_are_those_of_sgd_over_those_of_the_dense_network(overview, tmp_path):
    cells = read_csv(SCRIPT.parent / "fashion_mnist_curves.csv")
    sgd = cells.query("optimizer == 'sgd' and sparsity == 0 and seed == 0")
    size = sgd["batch_size"]
    # As if exact, but momentum, far from the law, makes the scale of all curves larger.
    of = {("sgd", 0.0): 32_000 / size + 300, ("sgd", 0.9): 96_000 / size + 1500}
    of["momentum", 0.0] = of["sgd", 0.0] * [1, 2, 1, 2]
    table = pd.concat(
        sgd.assign(optimizer=o, sparsity=s, steps_to_result=k, bracket_low=k - 1e-3)
        for (o, s), k in of.items()
    )
    alone = overview.constants(table[table["optimizer"] == "sgd"])
    assert alone["sparsity"].unique() == [0.9]
    assert alone["ratio"].tolist() == pytest.approx([3, 5], rel=0.02)
    found = overview.constants(table)
    assert (found["low"].to_numpy() < 0.8 * alone["low"].to_numpy()).all()
    table.to_csv(tmp_path / "mnist_curves.csv", index=False)
    drawn = [marks(axis) for axis in overview.draw_constants(tmp_path).axes]
    assert [y for [(_, y)] in drawn] == pytest.approx(found["ratio"].tolist())


def test_causes_are_those_in_pruned_networks_over_those_in_dense_ones(
    overview, tmp_path
):
    measured = read_csv(SCRIPT.parent / "causes_measurements.csv")
    dense = measured[measured["sparsity"] == 0]
    # Smoother by 3 in all pairs: both intervals have no width, and products follow L.
    pruned = dense.assign(sparsity=0.5, sparsity_method="snip")
    pruned["smoothness"] *= 3
    other = pruned.assign(sparsity_method="random", largest_eigenvalue=1.0)
    table = pd.concat([dense, pruned, other])
    found = overview.causes(table).set_index(["panel", "name"])
    assert found["sparsity"].unique() == [0.5]
    expected = [3, 3, 1, 1, 3, 3, 1, 1]
    for column in ("ratio", "low", "high"):
        assert found[column].tolist() == pytest.approx(expected)
    table.to_csv(tmp_path / "causes_measurements.csv", index=False)
    drawn = [marks(axis) for axis in overview.draw_causes(tmp_path).axes]
    for each in drawn:
        assert sorted(y for _, y in each) == pytest.approx([1, 1, 3, 3])
