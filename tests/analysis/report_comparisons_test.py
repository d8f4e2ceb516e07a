"""What a report says where curves are compared: one cause each, and the searches."""

from __future__ import annotations

import dataclasses

import pytest

from dps_tf.analysis import loading
from dps_tf.analysis.fit_table import fit_table
from dps_tf.analysis.law import Observations, compare
from dps_tf.analysis.report import assembly, curves, law, write_report
from dps_tf.analysis.report.content import ReportContext
from dps_tf.analysis.report.curves import effects
from dps_tf.analysis.report.measurements import smoothness_part
from dps_tf.analysis.report.summary import summary
from dps_tf.analysis.report.terminal import terminal_table
from dps_tf.store import LocalFiles, write_json
from tests.analysis.few_sections import draw_only
from tests.made_up.sweeps import Sweep, make, write_sweep

GRID = Sweep(batch_sizes=(16, 64, 256, 1024), points=24)


@pytest.fixture(scope="module")
def grid() -> tuple[loading.Tables, curves.Curves]:
    """Returns SGD with 24 points and Nesterov with 64, each dense and at 0.9."""
    other = dataclasses.replace(GRID, optimizers=("nesterov",), points=64)
    tables = make(GRID, other)
    return tables, curves.curves_of(tables.results, tables.studies)


def named_pairs(found, keys):
    """Returns the pairs of `effects` as titles of curves."""
    return [tuple(map(found.title, pair)) for pair in effects(keys)]


def test_the_plain_optimizer_comes_first(grid):
    names = list(dict.fromkeys(grid[1].cells["curve"]))
    assert names == [
        "sgd, sparsity 0",
        "sgd, sparsity 0.9",
        "nesterov, sparsity 0",
        "nesterov, sparsity 0.9",
    ]


def test_ratios_are_of_curves_that_differ_in_one_thing(grid):
    keys = list(grid[1].fits)
    assert named_pairs(grid[1], keys) == [
        ("sgd, sparsity 0.9", "sgd, sparsity 0"),
        ("nesterov, sparsity 0.9", "nesterov, sparsity 0"),
        ("nesterov, sparsity 0", "sgd, sparsity 0"),
        ("nesterov, sparsity 0.9", "sgd, sparsity 0.9"),
    ]
    # Without a partner for the second, there is one comparison left, of two things.
    unlike = [keys[0], keys[3]]
    [pair] = named_pairs(grid[1], unlike)
    assert pair == ("nesterov, sparsity 0.9", "sgd, sparsity 0")


def test_a_short_curve_has_the_row_of_its_joint_fit(grid):
    keys = list(grid[1].fits)
    fewer = {key: grid[1].fits[key] for key in keys[1:]}
    short = dataclasses.replace(grid[1], fits=fewer)
    joint = law.joint_fits(short)
    assert joint == law.joint_fits(grid[1])
    first, *others = law.fit_table(short, joint).frame.to_dict("records")
    [fit] = [each.fits[keys[0]] for each in joint]
    assert first["curve"] == "sgd, sparsity 0" and first["exponent"].text == ""
    assert first["c1"].text == law.constants(fit)["c1"].text
    whole = law.fit_table(grid[1], joint).frame.to_dict("records")
    assert others == whole[1:] and first["c1"] != whole[0]["c1"]


def test_what_moves_is_what_was_moved(grid):
    [joint] = law.joint_fits(grid[1])
    title = grid[1].title
    moved = {(title(r.curve), title(r.reference)): r.moves for r in joint.ratios}
    for optimizer in ("sgd", "nesterov"):
        dense = f"{optimizer}, sparsity 0"
        assert "c1" in moved[f"{optimizer}, sparsity 0.9", dense]
    assert moved["nesterov, sparsity 0", "sgd, sparsity 0"] == ("c2",)
    table = law.joint_table(grid[1], [joint]).frame
    told = table.set_index(["curve", "reference"])
    row = told.loc[("nesterov, sparsity 0", "sgd, sparsity 0")]
    assert row["moves"] == "c2 down"
    searches = "64 points in 2 dimensions against 24 points in 1 dimension"
    assert row["searches"] == searches


def test_a_ratio_that_may_be_one_moves_nothing():
    sizes = [4.0, 16.0, 64.0, 256.0]
    noisy = [[1.1, 0.9, 1.05, 0.95], [0.95, 1.1, 0.9, 1.05]]
    both = {
        name: Observations.of(
            sizes, [f * (16_000 / b + 200) for f, b in zip(n, sizes, strict=True)]
        )
        for name, n in zip("ab", noisy, strict=True)
    }
    [ratio] = compare(both, "a").ratios
    assert ratio.moves == () and law.moves_text(ratio) == "neither is told apart"
    brackets = {
        str(n): Observations.of(sizes, steps, [k - n for k in steps])
        for n, steps in ((10, [4200, 1200, 450, 260]), (20, [4200, 1200, 460, 260]))
    }
    [ratio] = compare(brackets).ratios
    assert law.moves_text(ratio).startswith("refused: evaluated every 20")
    wide = Observations.of(
        sizes, [4200, 1200, 460, 260], [4190, 1190, 420, 250], interval=[10] * 4
    )
    [ratio] = compare({"10": brackets["10"], "wide": wide}).ratios
    assert not law.moves_text(ratio).startswith("refused")


def test_every_comparison_names_points_and_dimension(grid):
    tables, found = grid
    told = summary(ReportContext(*grid, ()))[-1]
    assert "relative to sgd, sparsity 0:" in told
    assert "best of 24 points in 1 dimension for sgd, sparsity 0" in told
    assert "of 64 points in 2 dimensions for nesterov, sparsity 0" in told
    fits = law.fit_table(found, ()).frame
    assert fits["search"].tolist() == [
        *["24 points in 1 dimension"] * 2,
        *["64 points in 2 dimensions"] * 2,
    ]


def test_smoothness_of_winners_is_shown_without_a_mean_or_a_ratio(grid):
    tables, found = grid
    context = ReportContext(tables, found, ())
    part = smoothness_part(context)
    assert [item.name for item in part.illustrations] == ["smoothness"] or len(
        part.illustrations
    ) == len(found.panels)
    assert not part.tables
    assert "does not enter c2" in " ".join(part.paragraphs)


def test_cells_that_have_not_begun_are_named(tmp_path, monkeypatch):
    draw_only(monkeypatch, "headline", "table")
    small = Sweep(sparsities=(0.0,), batch_sizes=(16, 64), points=4, measured=False)
    write_sweep(tmp_path, small)
    name = "mnist_simple_cnn-sgd-none-seed0-b{}-s0.0"
    planned = [name.format(size) for size in (16, 64, 256)]
    write_json(LocalFiles(), str(tmp_path / "sweep.json"), {"cells": planned})
    tables = loading.load(tmp_path)
    assert tables.sweeps[0].not_begun == (name.format(256),)
    found = assembly.assemble(tables)
    assert "1 cell has not begun" in found.state
    [caution] = [c for c in found.cautions if "not begun" in c.title]
    assert caution.cells == (name.format(256),)


HALF = "mixed_bfloat16"


def test_precisions_are_curves_of_their_own_and_the_report_says_which(
    tmp_path, monkeypatch
):
    pair = dataclasses.replace(GRID, sparsities=(0.0, 0.9), batch_sizes=(16, 64, 256))
    tables = make(pair, dataclasses.replace(pair, precision=HALF))
    found = curves.curves_of(tables.results, tables.studies)
    names = ["sparsity 0, float32", f"sparsity 0, {HALF}"]
    names += ["sparsity 0.9, float32", f"sparsity 0.9, {HALF}"]
    assert list(dict.fromkeys(found.cells["curve"])) == names
    assert found.plot_rows["repeats"].eq(1).all() and len(found.plot_rows) == 12
    # Sparsities are compared in one precision, precisions at one sparsity.
    assert named_pairs(found, list(found.fits)) == [
        (names[2], names[0]),
        (names[3], names[1]),
        (names[1], names[0]),
        (names[3], names[2]),
    ]
    assert HALF in terminal_table(tables.results)
    draw_only(monkeypatch, "headline", "table", "law")
    write_report(tables, tmp_path)
    assert f"sparsity 0, {HALF}" in (tmp_path / "report.html").read_text()
    for name in ("trials", "curves"):
        written = loading.pd.read_parquet(tmp_path / f"{name}.parquet")
        of_both = set(written["precision"])
        assert of_both == {"float32", HALF} and list(written.columns)[6] == "precision"


def test_a_table_of_both_precisions_is_fitted_as_two_curves():
    pair = dataclasses.replace(GRID, sparsities=(0.0,), batch_sizes=(16, 64, 256))
    results = make(pair, dataclasses.replace(pair, precision=HALF)).results
    assert {fit.curve for fit in fit_table(results).curves} == {
        "precision float32",
        f"precision {HALF}",
    }
